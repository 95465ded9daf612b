"""Program: what the user's program is, what its first steps revealed, and what it shall run under.

Values only; nothing here starts the program or imports torch.
"""
