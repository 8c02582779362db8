"""What would a change be worth? A step's graph, timed again."""
