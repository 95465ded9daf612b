"""The parent's side of a rig: one live copy of the user's program, started to be measured.

A rig is started, asked for measurements over a socket, and ended together with everything that it
started. Every way in which it can end is an ``Ending``. This room never imports torch, because a
CUDA context in the parent process would take GPU memory away from the program that is measured.
"""
