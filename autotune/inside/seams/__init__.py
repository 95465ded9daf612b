"""The seams: each is one file that acts at one kind of thing the program does with PyTorch.

A seam replaces a few attributes of PyTorch, or of Python's own modules, when it is installed, and
puts them back when it is removed; where several act at one place, they listen to its hub.
"""
