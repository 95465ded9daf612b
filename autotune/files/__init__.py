"""Files: what autotune puts on the disk itself, and how it reads what others may have put there."""
