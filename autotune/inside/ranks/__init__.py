"""The ranks: processes that train together, what they tell each other, and their data."""
