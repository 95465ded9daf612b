"""The ranks: processes that train together, and how autotune joins and steers each of them."""
