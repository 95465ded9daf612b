"""Chooser: which config enters the race next, and why.

First comes every change that should help, at once; where the changes help, this is near the best
config already. Then its neighbours, which leave one change out each: they show which change hurts,
and what each one gives. Then the best config without the changes that seem to
give nothing, and the config near the best ones that promises most, per second: by the
expected improvement over the best so far (Jones, Schonlau and Welch 1998), from what was seen of
other configs (``KnobEffects``). At the end, the neighbours of the best that are missing.

A config that failed rules out others like it, and so does a forecast of the memory. On a GPU, the
largest batch that fits is among the values of a config, also between two on offer.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from autotune.knobs.space.space import ResolvedSpace
from autotune.machine.probes.torch_memory import SPARE_SHARE, UNRESERVED_SHARE
from autotune.measurement.interval import Interval
from autotune.measurement.outcome import ENDED_BY_US, Outcome
from autotune.measurement.readings import Memory
from autotune.measurement.rounds import Speeds
from autotune.program.config import Config, KnobValue
from autotune.results.record import TrialRecord, latest
from autotune.tuning.choosing.diagnosis import DEVICES
from autotune.tuning.choosing.effects import KnobEffects
from autotune.tuning.choosing.worth import LATE, NORMAL, is_worth, may_win, one_fewer
from autotune.tuning.storage.study import Trial

MEMORY: Final = frozenset({Outcome.OUT_OF_MEMORY, Outcome.HOST_OUT_OF_MEMORY})
# Knobs by which a batch may fit that did not fit before
SAVES_MEMORY: Final = frozenset(
    {"activation_checkpointing", "precision", "devices", "fsdp_options"}
)
SAVES_HOST_MEMORY: Final = SAVES_MEMORY | {"workers", "prefetch_factor"}
# Of batches between two sizes on offer: tensor cores multiply tiles of 8 rows in half precision
# (NVIDIA, "Matrix Multiplication Background User's Guide", table 1)
STEP: Final = 8

ALL_IN = "every change that should help, at once"
WITHOUT = "without {}, to see what it gives"
PROMISES = "it may be the fastest, by what was seen so far"
LARGEST = "the largest batch that fits, by the memory of smaller ones"
PROVEN = 0.7  # chance to give something, below which a change is left out for a try
MAX_NEIGHBOURS = 100
# Expected improvement (a logarithm) below which no config is worth a seat
WORTH = 0.006
Item = tuple[str, KnobValue]
Cell = tuple[KnobValue | None, ...]  # the values of SAVES_MEMORY


@dataclass(frozen=True)
class Proposal:
    """A config to measure, with the reason to try it.

    Attributes:
        why: Where the proposal comes from, as users read it.
        expected: Its speedup as it was expected before; None where nothing was.
        trial: Optuna's open trial in which the result must be recorded; None where autotune chose.
    """

    config: Config
    why: str
    expected: Interval | None = None
    trial: Trial | None = None


@dataclass(frozen=True)
class Field:
    """What is known while a race runs.

    Attributes:
        records: Of all that was tried, those in play included; the first is the baseline.
        share_left: Of the time for trials, 0 to 1.
        guilty: Changes with which the program fails outside of its training loop.
    """

    records: Sequence[TrialRecord]
    speeds: Speeds | None = None
    share_left: float = 1.0
    guilty: Sequence[Mapping[str, KnobValue]] = ()
    best: Config | None = None


class Chooser:
    """Chooses from what was recorded; it keeps no state but its random numbers.

    Args:
        spreads: Whether other machines choose from the same: then it draws in proportion to what
            configs promise, instead of taking the best, and leaves neighbours to those who have
            played them.
    """

    def __init__(
        self,
        space: ResolvedSpace,
        seed: int,
        all_in: Config | None = None,
        cost_s: Callable[[Config], float] = lambda _: 1.0,
        memory_bytes: float | None = None,
        *,
        spreads: bool = False,
    ) -> None:
        self._space = space
        self._spreads = spreads
        self._all_in = all_in
        self._cost_s = cost_s
        self._memory_bytes = memory_bytes
        self._effects = KnobEffects.of(space)
        self._random = random.Random(seed)

    def choose(self, field: Field) -> Proposal | None:
        """Return the config that is worth a seat; None if none is."""
        if not any(r.outcome not in ENDED_BY_US for r in field.records):
            return None
        pool = self._pool(field)
        for config, why in self._certain(pool):
            expected = self._effects.foresee(field.speeds, [config]).of(config).interval
            return Proposal(config, why, expected)
        return self._explore(pool)

    def simplest(self, field: Field) -> Config | None:
        """Return the best config without what seems to give nothing; None if little is known."""
        if field.best is None or field.share_left >= LATE:
            return None
        pool, config = self._pool(field), field.best
        while True:
            fewer = [without for _, without in one_fewer(self._space, config)]
            foreseen = self._effects.foresee(field.speeds, [config, *fewer])
            gains = {without: foreseen.of(config, over=without) for without in fewer}
            idle = [
                one
                for one in fewer
                if not is_worth(config.changes_from(one), gains[one], surely=PROVEN)
            ]
            if not idle:
                break
            config = min(idle, key=lambda one: gains[one].value)
        return config if config in pool.measured or pool.may_try(config) else None

    def _pool(self, field: Field) -> _Pool:
        return _Pool(field, self._space, self.forecast(field.records))

    def forecast(self, records: Sequence[TrialRecord]) -> Forecast:
        """Return which batches are expected to fit, by what was recorded."""
        return Forecast(records, self._memory_bytes)

    def _certain(self, pool: _Pool) -> Iterator[tuple[Config, str]]:
        first, is_late = self._first(pool), pool.field.share_left < LATE
        if first is not None and first not in pool.looks and self._cost_s(first) < math.inf:
            yield first, ALL_IN
        near = pool.best if is_late else first
        neighbours = [*one_fewer(self._space, near)] if near is not None else []
        if self._spreads:
            self._random.shuffle(neighbours)
        for knob, without in neighbours:
            is_elsewhere = self._spreads and without in (pool.field.speeds or ())
            may_try = pool.may_try(without) and self._cost_s(without) < math.inf
            if may_try and not is_elsewhere:
                yield without, WITHOUT.format(knob)

    def _first(self, pool: _Pool) -> Config | None:
        if self._all_in is None:
            return None
        every = self._space.with_smaller_batches(self._all_in)
        seen = next((config for config in every if config in pool.looks), None)
        return seen or next(filter(pool.may_try, every), None)

    def _explore(self, pool: _Pool) -> Proposal | None:
        others = [config for config in self._candidates(pool) if config != pool.best]
        if not others:
            return None
        foreseen = self._effects.foresee(pool.field.speeds, [pool.best, *others])
        worth = []
        for config in others:
            gain, cost_s = foreseen.of(config, over=pool.best), self._cost_s(config)
            z = gain.value / gain.error
            improvement = gain.error * NORMAL.pdf(z) + gain.value * NORMAL.cdf(z)
            if improvement >= WORTH and cost_s < math.inf:
                worth.append((improvement / cost_s, config))
        if not worth:
            return None
        _, chosen = max(worth, key=lambda one: one[0])
        if self._spreads:
            promise, configs = zip(*worth, strict=True)
            (chosen,) = self._random.choices(configs, promise)
        size = pool.largest_between(chosen)
        why = PROMISES if size is None or chosen["batch_size"] != size else LARGEST
        return Proposal(chosen, why, foreseen.of(chosen).interval)

    def _candidates(self, pool: _Pool) -> list[Config]:
        near = dict.fromkeys(self._one_change(pool.best, pool))
        pairs = {new for one in near for new in self._one_change(one, pool) if new not in near}
        some = sorted(pairs, key=repr)
        self._random.shuffle(some)
        near |= dict.fromkeys(some[:MAX_NEIGHBOURS])
        return [config for config in near if pool.may_try(config)]

    def _one_change(self, config: Config, pool: _Pool) -> Iterator[Config]:
        yield from self._exchanges(config)
        size = pool.largest_between(config)
        for knob, domain in self._space.domains.items():
            values = domain.values if knob != DEVICES else ()
            if knob == "batch_size" and size is not None:
                values = (*values, size)
            for value in values:
                if value != config[knob]:
                    changed = config.replace(**{**self._space.fixed, knob: value})
                    yield self._space.canonical(changed)

    def _exchanges(self, config: Config) -> Iterator[Config]:
        """Yield larger batches with fewer of them to a step, which has the same samples."""
        domains = self._space.domains
        if not {"batch_size", "accumulation_steps"} <= domains.keys():
            return
        samples = int(config["batch_size"]) * int(config["accumulation_steps"])
        for size in domains["batch_size"].values:
            steps, rest = divmod(samples, int(size))
            if not rest and steps in domains["accumulation_steps"].values:
                changed = config.replace(batch_size=size, accumulation_steps=steps)
                yield self._space.canonical(changed)


class _Pool:
    def __init__(self, field: Field, space: ResolvedSpace, forecast: Forecast) -> None:
        self.field = field
        self._space = space
        self._forecast = forecast
        self.baseline = field.records[0].config
        self.best = field.best or self.baseline
        records = [r for r in field.records if r.outcome not in ENDED_BY_US]
        self.looks = {record.config for record in records}
        self._failed = [
            r for r in latest(records) if r.ending is not None and r.outcome is not Outcome.RAN_OUT
        ]
        self.measured = {r.config for r in latest(records) if r.measurement is not None}
        self._sound = {item for config in self.measured for item in config.items()}

    def may_try(self, config: Config) -> bool:
        if config in self.looks or not may_win(self._space, config, self.field.guilty):
            return False
        if self._space.needs_restart(self.baseline, config):
            return False
        if any(_rules_out(record, config, self.baseline, self._sound) for record in self._failed):
            return False
        return self._forecast.fits(config) and not self._space.conflicts(config)

    def largest_between(self, config: Config) -> int | None:
        domain = self._space.domains.get("batch_size")
        return None if domain is None else self._forecast.between(config, domain.values)


def _rules_out(failed: TrialRecord, config: Config, baseline: Config, sound: set[Item]) -> bool:
    changes = failed.config.changes_from(baseline)
    size, other = failed.config.get("batch_size"), config.get("batch_size")
    if failed.outcome in MEMORY and "batch_size" in changes and size is not None:
        is_as_large = other is not None and int(other) >= int(size)
        is_device = failed.outcome is Outcome.OUT_OF_MEMORY
        saving = SAVES_MEMORY if is_device else SAVES_HOST_MEMORY
        return is_as_large and all(config.get(k) == failed.config.get(k) for k in saving)
    suspects = changes.items() - sound
    return (suspects or changes.items()) <= config.items()


class Forecast:
    """Tells which batches are expected to fit, from the peaks of smaller ones.

    Of configs that are alike in all that saves memory, the peak is taken for a straight line in the
    batch size: through the smallest and the largest that were seen, or as if all of it grew with
    the batch where one was seen. What torch reserves beside what it allocates keeps its share.

    Args:
        limit_bytes: What a config may use; None if it is not known, so that everything fits.
    """

    def __init__(self, records: Sequence[TrialRecord], limit_bytes: float | None) -> None:
        self._limit_bytes = limit_bytes or 0.0
        self._peaks: dict[Cell, dict[int, Memory]] = {}
        self._failed: dict[Cell, set[int]] = {}  # for want of the device's memory
        for record in records if limit_bytes is not None else ():
            size, cell = int(record.config.get("batch_size", 0)), _cell(record.config)
            if record.outcome is Outcome.OUT_OF_MEMORY:
                self._failed.setdefault(cell, set()).add(size)
            memory = None if record.measurement is None else record.measurement.memory
            if memory is not None and memory.needed_bytes:
                seen = self._peaks.setdefault(cell, {})
                seen[size] = max(memory, seen.get(size, memory), key=_needed)

    def fits(self, config: Config) -> bool:
        """Return whether a config fits, as far as that is known."""
        size, seen = int(config.get("batch_size", 0)), self._peaks.get(_cell(config))
        if not seen or size <= max(seen):
            return True
        largest, most = max(seen), self._most(seen)
        is_on_device = seen[largest].is_on_device
        # The host's memory is sampled, and to exceed it harms others: no line is trusted far
        if size > 2 * largest and not is_on_device:
            return size <= min(most, self._most({largest: seen[largest]}))
        # Where one size was seen, a try tells what grows; on a GPU, one between them if there is
        is_next = len(seen) == 1 and size <= 2 * largest
        return size <= most or (is_next and not (is_on_device and most >= largest + STEP))

    def between(self, config: Config, sizes: Sequence[KnobValue]) -> int | None:
        """Return the largest batch that fits, if it lies between two of the sizes on offer.

        None where the next size may fit, no memory of a device is known, or that batch was tried.
        If it did not fit, one halfway to the largest that did is returned.
        """
        seen = self._peaks.get(_cell(config))
        if not seen or not seen[max(seen)].is_on_device:
            return None
        largest, most = max(seen), self._most(seen)
        failed = {size for size in self._failed.get(_cell(config), ()) if size > largest}
        too_large = failed | {int(size) for size in sizes if int(size) > largest}
        if failed and most >= min(failed):
            most = (largest + min(failed)) / 2
        has_tried = len(seen) > 2 and any(size not in sizes for size in seen)
        if (has_tried and not failed) or not too_large or most >= min(too_large):
            return None
        size = int(most / STEP) * STEP
        return size if size > largest else None

    def _most(self, seen: Mapping[int, Memory]) -> float:
        """Return the largest batch that fits, by what others needed; it need not be whole."""
        smallest, largest = min(seen), max(seen)
        needed, peak = _needed(seen[largest]), seen[largest].peak_bytes or 0
        slope = needed / max(1, largest)
        if smallest < largest:
            slope = (needed - _needed(seen[smallest])) / (largest - smallest)
        share = min(1 - SPARE_SHARE, (1 - UNRESERVED_SHARE) * needed / peak)
        left_bytes = share * self._limit_bytes - needed
        return largest + left_bytes / slope if slope > 0 else math.inf


def _needed(memory: Memory) -> int:
    return memory.needed_bytes or 0


def _cell(config: Config) -> Cell:
    return tuple(config.get(knob) for knob in sorted(SAVES_MEMORY))
