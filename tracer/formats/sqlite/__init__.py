"""How are the tables of a SQLite file read as columns, even of a damaged one?"""
