"""The model is wrapped in ``nn.DataParallel``."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.results.advice.base import Advice, Readings

NAME = "nn.DataParallel"


def data_parallel(readings: Readings) -> Iterator[Advice]:
    """Say that DataParallel is in use.

    Source: PyTorch documentation of ``nn.DataParallel``, which recommends DistributedDataParallel
    even on one machine.
    """
    if readings.profile.ranks.distributed_by != NAME:
        return
    gpus = len(readings.hardware.gpus)
    yield Advice(
        "DataParallel",
        "The model is wrapped in nn.DataParallel: one Python process drives all GPUs, and weights "
        "are copied to each of them in every step.",
        f"The wrapper was seen around the model; this machine has {gpus or 'no'} "
        f"GPU{'' if gpus == 1 else 's'}.",
        "Remove the wrapper and let 'autotune search --tune devices' try "
        "DistributedDataParallel, a process per GPU; on one device, remove it.",
    )
