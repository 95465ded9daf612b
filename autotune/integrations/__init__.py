"""Integrations: the result of a search in experiment trackers, and a running search in notebooks.

Importing this room imports none of those tools; each is imported where it is used.
"""
