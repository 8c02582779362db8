"""How long does a collective take on a fabric, and which link bounds it?"""
