"""Training loops of libraries: do they train under a search, with which knobs? `make libraries`."""
