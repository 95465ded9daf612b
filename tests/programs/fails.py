"""Fails by itself."""

raise ImportError("no such data set: imaginary")
