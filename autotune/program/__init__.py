"""What the user's program is, what its first steps revealed, and the settings it is to run under.

This room holds values only. Nothing here starts the program or imports torch, so the parent
process, the rigs and the reports can all share these types.
"""
