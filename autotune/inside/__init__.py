"""All that runs in the user's process; the only part of autotune that imports torch."""
