"""Experiment trackers, switched off where a run is none of the user's experiments."""

from __future__ import annotations

# Each variable is from that tracker's documentation.
TRACKERS_OFF = {
    "WANDB_MODE": "disabled",
    "COMET_MODE": "disabled",
    "CLEARML_OFFLINE_MODE": "1",
    "NEPTUNE_MODE": "debug",
    "SWANLAB_MODE": "disabled",
}
