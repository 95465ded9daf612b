"""Sharing: one study of several machines in Optuna's storages, of which data alone is taken."""
