"""Code: the program's own objects and source, looked at without running any of it."""
