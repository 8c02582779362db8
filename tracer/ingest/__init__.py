"""How does a profile of another tool become a trace? What all formats share."""
