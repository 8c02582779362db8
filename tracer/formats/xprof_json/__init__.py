"""What does the trace.json of XProf say?"""
