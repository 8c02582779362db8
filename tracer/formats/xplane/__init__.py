"""What does an XSpace of XProf (JAX, TensorFlow, PyTorch/XLA) say?"""
