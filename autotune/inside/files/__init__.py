"""Files: the program's files as a trial has changed them, kept apart from the real ones."""
