"""What does a Perfetto trace say?"""
