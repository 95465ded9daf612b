"""What advice rests on, and what it says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

from autotune.machine.hardware import Hardware
from autotune.measurement.examination import Examination
from autotune.measurement.measurement import Measurement
from autotune.measurement.step_breakdown import StepBreakdown
from autotune.program.profile import Profile

# Below both, faster loading is not worth an edit: a share of waiting, a speedup with ready data
MIN_WAIT, MIN_GAIN = 0.15, 1.1
GROWTH = "memory growth"  # name of an advice that another one may explain
WARM_UP = 1  # first readings of memory that are left out: allocators still grow
STEADY = 2.5  # stretches add the same up to this factor
MANY = 5  # stretches
MIN_BYTES = 1 << 20  # in a stretch; what interpreter and allocator gain and lose comes to less


@dataclass(frozen=True)
class Readings:
    """All that was measured of a program as it is written.

    Attributes:
        hardware: The machine.
        profile: What the program's first steps revealed.
        measurement: Its speed, while nothing else was watched.
        breakdown: Where the time of a step goes.
        examination: What else was seen.
        switch_costs: By debugging switch (the name of its knob) how much faster the program is
            without it, measured in turns.
        again: The same, measured further times; of several ranks only.
    """

    hardware: Hardware
    profile: Profile
    measurement: Measurement
    breakdown: StepBreakdown = field(default_factory=StepBreakdown)
    examination: Examination = field(default_factory=Examination)
    again: tuple[Measurement, ...] = ()

    @property
    def step_s(self) -> float:
        """Seconds of a step that nobody watches."""
        return self.measurement.step_s

    @property
    def data_gain(self) -> float:
        """Speedup with data always ready; at least 1.0; 1.0 if that was not measured.

        The two were not measured at the same time. Without workers, loading takes nothing but
        the time that the program waits, so more than that cannot be gained.
        """
        ready = self.breakdown.synthetic_data_throughput
        now = self.measurement.throughput.estimate
        gain = max(1.0, ready.estimate / now) if ready is not None and now else 1.0
        has_workers = any(loader.num_workers for loader in self.profile.loaders)
        return gain if has_workers else min(gain, share_gain(self.measurement.wait_share))

    @property
    def device_growth(self) -> float:
        """Bytes by which memory of the device grows with each step; 0.0 if not steadily."""
        growth = self.examination.growth
        return 0.0 if growth is None else _per_step(growth.device_bytes, growth.steps)

    @property
    def host_growth(self) -> float:
        """Bytes by which memory of the host grows with each step; 0.0 if not steadily."""
        growth = self.examination.growth
        return 0.0 if growth is None else _per_step(growth.host_bytes, growth.steps)


@dataclass(frozen=True)
class Gain:
    """What following an advice gives at most.

    Attributes:
        most: As a speedup: 1.3 is 1.3 times the samples/s.
        basis: How that was estimated, as a clause.
    """

    most: float
    basis: str


@dataclass(frozen=True)
class Advice:
    """One thing that is worth a change.

    Attributes:
        name: Names the kind, such as ``input-bound: disk``; stays the same between versions.
        problem: What is wrong, as a sentence.
        evidence: What was measured, as a sentence.
        mend: What to do, as a sentence.
        where: The program's line, such as ``train.py:41``; empty if there is no single one.
        gain: What it gives at most; None if it does not concern speed, or that is not known.
        explains: Names of other advice whose cause this is.
    """

    name: str
    problem: str
    evidence: str
    mend: str
    where: str = ""
    gain: Gain | None = None
    explains: tuple[str, ...] = ()


def _per_step(readings: Sequence[int], steps: int) -> float:
    added = [after - before for before, after in pairwise(readings[WARM_UP:])]
    if not added or not steps:
        return 0.0
    usual = median(added)
    alike = sum(usual / STEADY <= one <= usual * STEADY for one in added)
    # One of many may differ: allocators give memory back at any time
    is_steady = usual > 0 and alike >= len(added) - (len(added) >= MANY)
    return usual / steps if is_steady and usual >= MIN_BYTES else 0.0


def share_gain(share: float) -> float:
    """Return the speedup if a share of the time is taken away altogether."""
    return 1 / (1 - min(share, 0.95))


def ms(seconds: float) -> str:
    """Return seconds as milliseconds, as users read them."""
    return f"{1000 * seconds:,.3g} ms"


def size(count: float) -> str:
    """Return bytes with a unit that fits: ``512 B``, ``3.4 KiB``, ``2.1 GiB``."""
    for unit in ("B", "KiB", "MiB"):
        if count < 1024:
            return f"{count:,.3g} {unit}"
        count /= 1024
    return f"{count:,.3g} GiB"
