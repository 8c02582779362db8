"""How is Chrome-style JSON scanned, millions of events a second, whatever is wrong with it?"""
