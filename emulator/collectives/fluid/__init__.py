"""How fast do messages flow that share links fairly?"""
