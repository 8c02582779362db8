"""What does a database of AMD's rocprofv3 or of the older rpd tracer say?"""
