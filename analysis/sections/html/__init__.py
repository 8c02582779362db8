"""How does a report look in a browser? One file that needs nothing else: style, tables, charts and the program that draws them."""
