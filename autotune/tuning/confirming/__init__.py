"""Confirming: whether the best config is faster, by fresh processes alone."""
