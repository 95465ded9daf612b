"""The program's files as a trial sees them: it changes shadow copies, never the real files."""
