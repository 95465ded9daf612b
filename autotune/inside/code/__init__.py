"""The program's objects and source, read without running any of its code."""
