"""What holds a step back, and what would undoing each of it save?"""
