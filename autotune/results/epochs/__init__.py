"""Whole epochs: what they and the whole training take, before and after."""
