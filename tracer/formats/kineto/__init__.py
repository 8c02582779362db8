"""What does a profile of PyTorch (Kineto) say?"""
