"""Switches that help to find bugs, and slow down each step.

They are told and never searched: whether they are still needed is the user's to know.
"""

from __future__ import annotations

from collections.abc import Iterator

from autotune.program.profile import TorchSettings
from autotune.results.advice.base import Advice, Readings

# By setting: what is on, and the call that turns it off
SWITCHES = {
    "deterministic_algorithms": (
        "Deterministic algorithms are on",
        "Unless runs must be equal bit for bit, turn off torch.use_deterministic_algorithms.",
    ),
    "anomaly_detection": (
        "Autograd's anomaly detection is on",
        "Turn it off once the bug is found: torch.autograd.set_detect_anomaly(False).",
    ),
    "autograd_profiler": (
        "A profiler of torch records every operator, and needs ever more memory",
        "Stop it after some steps, or give it a schedule.",
    ),
}


def switches_left_on(settings: TorchSettings) -> Iterator[tuple[str, str, str]]:
    """Yield the switches that are on: the setting, what that means, and how to turn it off."""
    for name, (problem, mend) in SWITCHES.items():
        if getattr(settings, name):
            yield name, f"{problem}.", mend


def debug_switches(readings: Readings) -> Iterator[Advice]:
    """Say which switches are on."""
    for name, problem, mend in switches_left_on(readings.profile.settings):
        seen = "It was on while the program trained; its cost was not measured."
        yield Advice(f"left on: {name}", problem, seen, mend)
