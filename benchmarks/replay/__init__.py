"""Whole searches on programs of which the true speed of every config was recorded."""
