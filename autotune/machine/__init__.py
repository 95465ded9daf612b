"""What this computer is, what limits it, and which other processes are busy on it.

The parent process uses this room, so nothing here imports torch. The one exception is
``probes/torch_memory.py``, which only runs in the program's process.
"""
