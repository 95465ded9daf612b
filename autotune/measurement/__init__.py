"""Turns of configs, how a trial ended, and the arithmetic on both.

Everything here is pure: values and functions without I/O, clocks or randomness of the machine.
"""
