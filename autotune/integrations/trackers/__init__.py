"""Trackers: the result of a search in MLflow, Weights & Biases or TensorBoard, one file each."""

from __future__ import annotations

from autotune.errors import named
from autotune.integrations.trackers.base import Logged, Tracker
from autotune.integrations.trackers.mlflow import MLflow
from autotune.integrations.trackers.tensorboard import TensorBoard
from autotune.integrations.trackers.wandb import WeightsAndBiases

__all__ = ["TRACKERS", "Logged", "Tracker", "tracker"]

TRACKERS: dict[str, Tracker] = {
    one.name: one for one in (MLflow(), WeightsAndBiases(), TensorBoard())
}


def tracker(name: str) -> Tracker:
    """Return a tracker by the name that users type.

    Raises:
        UsageError: There is no such tracker; the message lists those that there are.
    """
    return named("tracker", name, TRACKERS)
