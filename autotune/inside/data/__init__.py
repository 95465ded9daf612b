"""Data: loaders, datasets and batches of the program, as they are seen while it trains."""
