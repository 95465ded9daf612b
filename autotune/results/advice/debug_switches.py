"""Switches that help to find bugs, and slow down each step."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.results.advice.base import Advice, Gain, Readings
from autotune.results.wording import times

DETERMINISTIC = (
    "Unless runs must be equal bit for bit, turn it off: torch.use_deterministic_algorithms, or "
    "torch.backends.cudnn.deterministic."
)
# By knob: what is on, and the call that turns it off
SWITCHES = {
    "deterministic_algorithms": (
        "Deterministic algorithms are on",
        DETERMINISTIC,
    ),
    "anomaly_detection": (
        "Autograd's anomaly detection is on",
        "Turn it off once the bug is found: torch.autograd.set_detect_anomaly(False).",
    ),
}


def debug_switches(readings: Readings) -> Iterator[Advice]:
    """Say which switches are on, and what each of them costs."""
    profile = readings.profile
    for knob, (problem, mend) in SWITCHES.items():
        if not getattr(profile.settings, knob):
            continue
        cost = readings.switch_costs.get(knob)
        measured = "Its cost was not measured." if cost is None else (
            f"Without it, the program runs at {times(cost)}, measured in turns."
        )  # fmt: skip
        gain = None if cost is None else Gain(max(1.0, cost.estimate), "measured in turns")
        yield Advice(f"left on: {knob}", f"{problem}.", measured, mend, gain=gain)
    if profile.settings.autograd_profiler:
        yield Advice(
            "left on: autograd_profiler",
            "A profiler of torch records every operator, and needs ever more memory.",
            "It was recording while the program trained.",
            "Stop it after some steps, or give it a schedule; 'autotune search --tune "
            "autograd_profiler' measures what it costs.",
        )
