"""The program's objects, autograd graphs and source, read without running any of its code."""
