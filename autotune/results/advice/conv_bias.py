"""Convolutions with a bias that the following norm subtracts again."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.results.advice.base import Advice, Gain, Readings, ms, share_gain


def conv_bias(readings: Readings) -> Iterator[Advice]:
    """Name the layers, and what their biases cost.

    Source: PyTorch performance tuning guide, "Disable bias for convolutions directly followed by a
    batch norm".
    """
    found = readings.examination.biased_convs
    if found is None:
        return
    share = found.step_s / readings.step_s if readings.step_s else 0.0
    more = f" and {found.layers - len(found.names)} more" if found.layers > len(found.names) else ""
    yield Advice(
        "conv bias before a norm",
        "Convolutions have a bias that the norm after them subtracts again.",
        f"{', '.join(found.names)}{more}: the output goes straight into a norm. Their biases take "
        f"{ms(found.step_s)} of a step of {ms(readings.step_s)}.",
        "Build them with bias=False; checkpoints of the old model then need strict=False.",
        gain=Gain(share_gain(share), "each layer timed with its bias and without, on its shapes"),
    )
