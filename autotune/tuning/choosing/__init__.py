"""Choosing: which config is measured next, and why."""
