"""How a person browses a trace in a terminal."""
