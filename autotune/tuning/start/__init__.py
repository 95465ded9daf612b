"""Start: get a program to train in a rig for the first time, or say why it does not.

Covers what a program does before its first step. Later failures are the concern of the trials.
"""
