"""What do foreign formats say, and how is a trace said in theirs? One package a format; the modules beside them serve several."""
