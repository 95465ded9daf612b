"""The program's loaders, datasets and batches, observed and replaced while it trains."""
