"""Probe: one source of readings; the interface of the family."""

from __future__ import annotations

from autotune.measurement.measurement import Memory


class Probe:
    """Reads peaks over a window. What it cannot read stays None, and a dead source stays silent."""

    def reset(self) -> None:
        """Begin a window."""

    def sample(self) -> None:
        """Take a reading, for sources that keep no peak of their own."""

    def read(self, memory: Memory) -> Memory:
        """Return *memory* with this probe's fields filled in."""
        return memory
