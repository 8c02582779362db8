"""How is a collective written as a trace?"""
