"""Runs with short epochs: what they meet after an epoch, and what their first steps learn."""
