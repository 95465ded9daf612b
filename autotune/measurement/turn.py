"""Turns: a few whole steps under one config, timed together, and what counts of them.

Configs take turns in one running program, so whatever the machine does to it meets all of them.
A turn is timed from one step's end to another's; the seconds of the switch before it belong to no
config. How long a turn has to be was measured (``benchmarks/turns.py``): flags and context managers
act at once, but batches that lie ready, and the memory that another batch size needs, take the
first steps of a turn.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import median, pvariance

from autotune.measurement.interval import Interval, LogRatio
from autotune.measurement.readings import Compilation, Interference, Memory, RankLoad

# Seconds of a turn that count. By benchmarks/turns.py, flags were not off at any length, another
# batch size by 7 % below 0.1 s. On a GPU, 0.25 s keep running ahead as it is.
TURN_S, DEVICE_TURN_S = 0.15, 0.25
# Standard deviation of the logarithm of a turn's speed, where too few turns show it, and the weight
# of that in turns. They were seen to scatter by 5 to 20 % on a shared 2-core machine
# (benchmarks/turns.py).
USUAL_NOISE, KNOWN_ROUNDS = 0.06, 3.0
MOST_GROUPS = 12  # of turns or rounds, that the jackknife leaves out
# Steps that do not count after a switch, of a turn that has more: the first one was 0 to 5 % longer
SETTLING = 1
LONG_STEP_S = 0.3
MOST_SETTLING_S = 0.5  # in which batches that lie ready are used up


@dataclass(frozen=True)
class PlannedTurn:
    """A turn that is to be taken: the number of its config, and whole steps."""

    config: int
    steps: int


@dataclass(frozen=True)
class Turn:
    """A turn that was taken.

    Attributes:
        seconds: Of each step, from the end of the one before, or of the switch.
        samples: Of each step, over all ranks.
        switch_s: Seconds of the switch from the config before; they belong to no config.
        disturbed: Places of the steps in which the program did something besides training.
        wait_s: Seconds in which the program waited for its batches.
        tokens: Token ids that went into the model; 0 if its input is not token ids.
        loss: Of its last step; None if the program shows none.
        is_quiet: Whether nothing was compiled, and the device's allocator took no memory.
        faults: Page faults of each step; empty if they were not counted.
    """

    config: int
    seconds: tuple[float, ...]
    samples: tuple[int, ...]
    switch_s: float
    disturbed: tuple[int, ...] = ()
    wait_s: float = 0.0
    tokens: int = 0
    loss: float | None = None
    is_quiet: bool = True
    faults: tuple[int, ...] = ()

    @property
    def is_finite(self) -> bool:
        """Whether its loss is a number; True if the program shows none."""
        return self.loss is None or math.isfinite(self.loss)


@dataclass(frozen=True)
class Taken:
    """What came of a schedule of turns.

    Attributes:
        turns: All that were planned, unless the program ended before.
        steps: That the program has made in all.
        samples_per_epoch: Samples between two starts of the training loader; None if unknown.
        power_w: Mean power of the GPUs, or of the CPU packages for a program on the CPU; None if no
            counter can be read.
        compilation: What torch.compile did meanwhile; None if the process compiles nothing.
        ranks: How the ranks spent their time; empty for a single process, and if not asked for.
        interference: What others took from the machine meanwhile; None if that cannot be seen.
    """

    turns: tuple[Turn, ...]
    steps: int = 0
    samples_per_epoch: int | None = None
    memory: Memory = field(default_factory=Memory)
    power_w: float | None = None
    compilation: Compilation | None = None
    ranks: tuple[RankLoad, ...] = ()
    interference: Interference | None = None


@dataclass(frozen=True)
class Length:
    """How long the turns of a config are: whole steps, of which the settling ones do not count."""

    steps: int
    settling: int
    seconds: float


def length_of(
    step_s: float,
    *,
    cycle: int = 1,
    ready: int = 0,
    ahead: int = 0,
    on_device: bool = False,
    is_warm: bool = False,
) -> Length:
    """Return how long the turns of a config are.

    Batches that lay ready when a config went to rest are a gift to its next turn, of 3 to 5 % in
    turns below a second; so they do not count. And workers deliver in bursts of a batch each, so
    whole cycles of them are counted. Steps that take long are turns by themselves.

    Args:
        cycle: Steps in which each worker of its loader delivers once.
        ready: Steps that full buffers of its loader feed.
        ahead: Batches that the program takes before it trains on them. The first steps of a turn
            train on what another config has loaded, and samples are counted where they are taken.
        on_device: Whether it computes on a GPU, ahead of which the program runs.
        is_warm: Whether memory may be mapped that another config has kept, which makes the first
            step of a turn faster or slower however long it is.
    """
    if step_s >= LONG_STEP_S:
        settling = ahead + SETTLING if ahead or is_warm else 0
        return Length(1 + settling, settling, (1 + settling) * step_s)
    wanted_s = DEVICE_TURN_S if on_device else TURN_S
    counted = cycle * max(1, math.ceil(wanted_s / step_s / cycle))
    ready = min(ready, int(MOST_SETTLING_S / step_s))
    settling = SETTLING + ready + ahead if counted > SETTLING or ahead or is_warm else 0
    return Length(counted + settling, settling, (counted + settling) * step_s)


def median_step_s(turns: Sequence[Turn]) -> float:
    """Return the median seconds of a step; turns must hold at least one."""
    return median(seconds for turn in turns for seconds in turn.seconds)


def in_random_order(lengths: Sequence[Length], rounds: int, dice: random.Random) -> list[int]:
    """Return the numbers of configs for a number of rounds, each of which has every config once."""
    numbers = range(len(lengths))
    return [number for _ in range(rounds) for number in dice.sample(numbers, len(numbers))]


@dataclass(frozen=True)
class Played:
    """One config in one round, or a stay of one config.

    Attributes:
        cost: Seconds of the steps that count; where configs are compared by energy, joules; by
            memory, bytes.
        work: Samples of these steps, or what else is to be done.
    """

    cost: float
    work: float
    seconds: float = 0.0
    samples: float = 0.0
    steps: int = 1
    wait_s: float = 0.0
    faults: int = 0

    def __add__(self, other: Played) -> Played:
        """Return both together."""
        return Played(
            self.cost + other.cost,
            self.work + other.work,
            self.seconds + other.seconds,
            self.samples + other.samples,
            self.steps + other.steps,
            self.wait_s + other.wait_s,
            self.faults + other.faults,
        )

    def times(self, factor: float) -> Played:
        """Return the same with another amount of work."""
        return replace(self, work=self.work * factor)


def played(turn: Turn, settling: int = 0) -> Played | None:
    """Return what counts of a turn, without settling and disturbed steps.

    None if no step is left, or the turn was disturbed for the most part.
    """
    counted = [n for n in range(settling, len(turn.seconds)) if n not in turn.disturbed]
    if 2 * len(counted) < len(turn.seconds) - settling or not counted:
        return None
    seconds = sum(turn.seconds[n] for n in counted)
    samples = sum(turn.samples[n] for n in counted)
    if not samples or not seconds:  # steps without a call of the model that is counted
        return None
    wait_s = turn.wait_s * min(1.0, seconds / sum(turn.seconds))
    faults = sum(turn.faults[n] for n in counted if turn.faults)
    return Played(seconds, samples, seconds, samples, len(counted), wait_s, faults)


Round = Mapping[int, Played]
"""Configs by their number, with what each played in one round."""


def rounds_of(turns: Sequence[Turn], lengths: Sequence[Length]) -> list[Round]:
    """Return whole rounds of turns that were taken in the order of ``in_random_order``.

    A round in which nothing of a config counts is left out, whole.
    """
    size = len(lengths)
    found: list[Round] = []
    for at in range(0, len(turns) - size + 1, size):
        one = {
            turn.config: what
            for turn in turns[at : at + size]
            if (what := played(turn, lengths[turn.config].settling)) is not None
        }
        if len(one) == size:
            found.append(one)
    return found


def rate(turns: Sequence[Played]) -> Interval:
    """Return work per cost over several turns of one config, with its 95 % interval.

    The error is that of the jackknife over groups of neighbouring turns (Efron, The Jackknife,
    1982), which leans on ``USUAL_NOISE`` where they are few.
    """
    work, cost = sum(one.work for one in turns), sum(one.cost for one in turns)
    count = len(turns)
    groups = min(count, MOST_GROUPS)
    parts = [turns[count * n // groups : count * (n + 1) // groups] for n in range(groups)]
    left_out = [
        math.log((work - sum(t.work for t in part)) / (cost - sum(t.cost for t in part)))
        for part in (parts if groups > 1 else [])
    ]
    told = max(0, groups - 1)
    of_a_turn = pvariance(left_out) * told * count if told else 0.0
    known = KNOWN_ROUNDS * USUAL_NOISE**2 + told * of_a_turn
    error = math.sqrt(known / (KNOWN_ROUNDS + told) / count)
    return LogRatio(math.log(work / cost), error).interval
