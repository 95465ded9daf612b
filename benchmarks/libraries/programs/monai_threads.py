"""Trains the network of monai_cache.py, loaded by a ThreadDataLoader."""

from monai.data import ThreadDataLoader
from monai_cache import main

if __name__ == "__main__":
    main(ThreadDataLoader)
