"""Fails by itself."""

raise RuntimeError("no such data set: imaginary")
