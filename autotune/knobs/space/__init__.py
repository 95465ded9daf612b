"""Search spaces: which knobs a search may set, with which values, and how people write them."""
