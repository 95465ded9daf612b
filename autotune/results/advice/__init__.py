"""Advice: what slows a program down or breaks it later, by what ``autotune doctor`` measured.

One file per kind. A member is a function from the readings to advice, in ``MEMBERS``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from autotune.results.advice.affinity import affinity
from autotune.results.advice.base import Advice, Gain, Readings
from autotune.results.advice.caching import caching
from autotune.results.advice.conv_bias import conv_bias
from autotune.results.advice.data_parallel import data_parallel
from autotune.results.advice.debug_switches import debug_switches
from autotune.results.advice.host_reads import host_reads
from autotune.results.advice.input_bound import input_bound
from autotune.results.advice.kept_graphs import kept_graphs
from autotune.results.advice.large_batch import large_batch
from autotune.results.advice.launch_bound import launch_bound
from autotune.results.advice.memory_growth import memory_growth
from autotune.results.advice.stragglers import stragglers

__all__ = ["MEMBERS", "Advice", "Gain", "Readings", "advise"]

MEMBERS: tuple[Callable[[Readings], Iterator[Advice]], ...] = (
    *(input_bound, caching, launch_bound, host_reads, debug_switches, conv_bias, data_parallel),
    *(affinity, kept_graphs, memory_growth, stragglers, large_batch),
)


def advise(readings: Readings) -> tuple[Advice, ...]:
    """Return all advice, the largest possible gain first, advice without a known gain last.

    A symptom is left out where its cause is told.
    """
    found = [advice for member in MEMBERS for advice in member(readings)]
    explained = {name for advice in found for name in advice.explains}
    kept = (advice for advice in found if advice.name not in explained)
    return tuple(sorted(kept, key=lambda a: -(a.gain.most if a.gain is not None else 0.0)))
