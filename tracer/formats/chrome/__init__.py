"""What does a Chrome trace of any program say?"""
