"""How does a trace become a Perfetto trace?"""
