"""Ranks: the processes that train together, and how each takes its part."""
