"""Measurement: what a window of steps gave, how a trial ended, and the arithmetic on it; pure."""
