"""Before a config is recommended: whether it survives the end of an epoch, and trains the same."""
