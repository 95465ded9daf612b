"""The command line: everything that people type and read.

Only this room prints and knows exit codes. It imports everything heavy within functions, so that
``autotune --help`` answers at once.
"""
