"""How long does a lone collective take, by formula?"""
