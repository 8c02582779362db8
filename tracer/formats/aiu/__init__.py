"""What does a trace of IBM's AIU say?"""
