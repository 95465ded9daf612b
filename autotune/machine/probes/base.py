"""Probe: the interface of all sources that report memory over a while."""

from __future__ import annotations

from autotune.measurement.readings import Memory


class Probe:
    """Reads the peak memory use over a while from one source.

    The caller calls ``reset()`` when turns begin, ``sample()`` meanwhile and ``read()`` at their
    end. Every method does nothing by default. A value that cannot be read stays None, and a source
    that stops answering never ends a measurement.
    """

    def reset(self) -> None:
        """Forget earlier peaks, because other turns begin."""

    def sample(self) -> None:
        """Take one reading; only needed for sources that do not record a peak themselves."""

    def read(self, memory: Memory) -> Memory:
        """Return *memory* with this probe's fields filled in."""
        return memory
