"""Ends well, without a step."""

print("hello")
