"""What a run keeps on disk: its folder, its record, and whose turn it is to write."""
