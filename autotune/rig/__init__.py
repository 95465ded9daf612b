"""Rig: the parent's handle on one live copy of the program; every way it can end is an Ending.

This room never imports torch: a CUDA context in the parent would take memory from the program.
"""
