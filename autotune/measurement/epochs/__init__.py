"""Whole epochs: what was seen of them, and what they consist of."""
