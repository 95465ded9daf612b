"""Records how fast configs of real programs are, and replays searches on what was recorded."""
