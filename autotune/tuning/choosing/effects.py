"""Effects: what the speed of one config says about another one that shares knob values with it.

The log speedup of a config over the baseline is modelled as a sum: an effect for each knob whose
value differs from the baseline's, an effect for each pair of them, and what the config has for
itself in one process. All are unknown; how much they are assumed to vary says how alike two configs
are. Most knobs give nothing to most programs: so how much each one may do is learned from the
rounds, and what a knob that does little seems to give is taken for noise.

- Values of a knob that are numbers have an order. The effect grows by an unknown amount from each
  value to the next one, more where they are further apart on a logarithmic scale, so 8 workers are
  more like 4 than like 0.
- The effect of a pair is smaller than that of a single knob.

This is a Gaussian process with an additive kernel (Duvenaud, Nickisch and Rasmussen 2011, "Additive
Gaussian Processes"), whose scales tell which knobs matter (MacKay 1994, "automatic relevance
determination").
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from itertools import accumulate, pairwise
from typing import cast

import numpy as np

from autotune.knobs.space.space import ResolvedSpace
from autotune.measurement.rounds import TAU, Array, Speeds
from autotune.program.config import Config, KnobValue

USUAL = 0.04  # standard deviation of the effect of one knob
SPREADS = (0.005, 0.02, 0.06, 0.25, 0.8)  # that it may have: from none to speak of to a factor of 2
JITTER = 1e-6  # variance that keeps matrices regular
PAIR = 0.3  # standard deviation of the effect of a pair, where those of its knobs are 1
APART = 4.0  # variance of the logarithm of one knob's spread over that of all


@dataclass(frozen=True)
class KnobEffects:
    """How alike configs are that differ from one baseline.

    Attributes:
        baseline: The config whose effects are zero.
        values: Of each knob that is searched, in their order, and those at which others are held.
    """

    baseline: Config
    values: Mapping[str, Sequence[KnobValue]]
    # Of each config that was asked about, what it shares with others: a row for all knobs
    _rows: dict[Config, Array] = field(default_factory=dict, init=False, compare=False, repr=False)
    # Learned from the last rounds, for each kind of noise: a race asks often before it plays again
    _learned: dict[bool, tuple[Speeds, Array]] = field(
        default_factory=dict, init=False, compare=False, repr=False
    )

    @classmethod
    def of(cls, space: ResolvedSpace) -> KnobEffects:
        """Return what configs of a space say about each other."""
        fixed = {knob: (value,) for knob, value in space.fixed.items()}
        searched = {knob: tuple(domain.values) for knob, domain in space.domains.items()}
        return _effects(space.baseline, tuple({**fixed, **searched}.items()))

    def foresee(self, seen: Speeds | None, configs: Sequence[Config]) -> Speeds:
        """Return what is to be expected of configs, seen in rounds or not."""
        known = [] if seen is None else [c for c in seen.configs[1:] if isinstance(c, Config)]
        if seen is None or not known:
            prior = self._alike(configs, configs).covariance(np.full(len(self.values), USUAL))
            return Speeds(tuple(configs), np.zeros(len(configs)), prior)
        values, noise = seen.means[1:], seen.covariance[1:, 1:] + JITTER * np.eye(len(known))
        own = self._alike(known, known)
        learned = self._learned.get(by_rounds := seen.by_rounds is None)
        if learned is None or learned[0] is not seen:
            learned = self._learned[by_rounds] = seen, _likeliest(own, values, noise)
        _, spreads = learned
        shared = self._alike(configs, known).covariance(spreads)
        gain = np.linalg.solve(own.covariance(spreads) + noise, shared.T).T
        prior = self._alike(configs, configs).covariance(spreads)
        return Speeds(tuple(configs), gain @ values, prior - gain @ shared.T)

    def _alike(self, some: Sequence[Config], others: Sequence[Config]) -> _Alike:
        shared = np.zeros((len(self._parts), len(some), len(others)))
        if len(some) and len(others):
            rows, columns = (np.array([self._row(one) for one in of]) for of in (some, others))
            for n, part in enumerate(self._parts):
                shared[n] = rows[:, part] @ columns[:, part].T
        numbers = {one: number for number, one in enumerate(dict.fromkeys([*some, *others]))}
        rows, columns = (np.array([numbers[one] for one in of], int) for of in (some, others))
        is_changed = np.array([one != self.baseline for one in some], float)
        return _Alike(shared, (rows[:, None] == columns[None, :]) * is_changed[:, None])

    @cached_property
    def _steps(self) -> dict[str, dict[KnobValue, Array]]:
        return {knob: _steps(of, self.baseline[knob]) for knob, of in self.values.items()}

    @cached_property
    def _parts(self) -> list[slice]:
        sizes = [len(next(iter(steps.values()))) for steps in self._steps.values()]
        return [slice(end - size, end) for size, end in zip(sizes, accumulate(sizes), strict=True)]

    def _row(self, config: Config) -> Array:
        if config not in self._rows:
            steps = [
                _between(config.get(knob, self.baseline[knob]), of)
                for knob, of in self._steps.items()
            ]
            self._rows[config] = np.concatenate(steps) if steps else np.zeros(0)
        return self._rows[config]


@lru_cache(maxsize=8)
def _effects(
    baseline: Config, values: tuple[tuple[str, tuple[KnobValue, ...]], ...]
) -> KnobEffects:
    return KnobEffects(baseline, dict(values))


@dataclass(frozen=True)
class _Alike:
    shared: Array
    same: Array

    def covariance(self, spreads: Array) -> Array:
        scaled = spreads[:, None, None] * self.shared
        single = (spreads[:, None, None] * scaled).sum(axis=0)
        # the sum of all products of two different knobs
        pairs = (scaled.sum(axis=0) ** 2 - (scaled**2).sum(axis=0)) / 2
        covariance: Array = single + PAIR**2 * pairs + TAU**2 * self.same
        return covariance


def _likeliest(alike: _Alike, values: Array, noise: Array) -> Array:
    """Return the spread of each knob's effects with which values are most likely.

    That of all is near ``USUAL``, with the weight of a few configs: a search must not end because a
    noisy machine hides what the configs differ by. And where one knob does much, another one of
    which little is known may as well.
    """
    spreads = np.full(len(alike.shared), USUAL)

    def likelihood(which: slice, spread: float) -> float:
        spreads[which] = spread
        covariance = alike.covariance(spreads) + noise
        _, size = np.linalg.slogdet(covariance)
        return float(-0.5 * (values @ np.linalg.solve(covariance, values) + size))

    def strays(spread: float, usual: float) -> float:
        return 0.5 * math.log(spread / usual) ** 2

    every = slice(None)
    of_all = max(SPREADS, key=lambda one: likelihood(every, one) - strays(one, USUAL))
    spreads[every] = of_all
    for n in np.flatnonzero(alike.shared.any(axis=(1, 2))):
        knob = slice(n, n + 1)
        spreads[n] = max(SPREADS, key=lambda s: likelihood(knob, s) - strays(s, of_all) / APART)
    return spreads


def _steps(values: Sequence[KnobValue], own: KnobValue) -> dict[KnobValue, Array]:
    """Return what each value of a knob shares with the others, as a row of step lengths.

    Two values share the steps that lie between the baseline's value and both of them.
    """
    every = list(dict.fromkeys([*values, own]))
    is_ordered = all(isinstance(v, (int, float)) and not isinstance(v, bool) for v in every)
    if not is_ordered:
        others = [v for v in every if v != own]
        return {v: np.array([float(v == other) for other in others] or [0.0]) for v in every}
    numbers = sorted(cast("list[float]", every))
    place = numbers.index(cast("float", own))
    lengths = [_length(a, b) for a, b in pairwise(numbers)] or [0.0]
    return {
        value: np.array(
            [
                math.sqrt(length) * (min(place, at) <= step < max(place, at))
                for step, length in enumerate(lengths)
            ]
        )
        for at, value in enumerate(numbers)
    }


def _between(value: KnobValue, steps: Mapping[KnobValue, Array]) -> Array:
    # A batch may lie between those on offer: the largest one that fits, or a rank's share
    if value in steps or isinstance(value, str):
        return steps[value]
    numbers = sorted(steps, key=float)
    columns = np.array([steps[number] for number in numbers]).T
    return np.array([np.interp(float(value), [*map(float, numbers)], column) for column in columns])


def _length(smaller: float, larger: float) -> float:
    """Return how far apart two numbers are: 1 for a factor of two or more, and for 0 and 1."""
    return min(1.0, math.log2(larger / smaller)) if smaller > 0 else 1.0
