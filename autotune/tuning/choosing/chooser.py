"""Chooser: which config is worth the next visit.

Three stages follow each other:

1. *All-in*: every move that should help, at once. Where the moves help, this is near the best
   config at once; where one of them hurts, the next visits show which.
2. *Exploring*: the config near the best ones whose visit promises most, per second. What is
   promised is the expected improvement over the best config so far (Jones, Schonlau and Welch
   1998), by the stream model with ``KnobEffects``: what was seen of other configs counts.
3. *Racing*, when little time is left or nothing new promises enough: the best config and a rival,
   drawn from the posterior, are visited in turn (top-two Thompson sampling, Russo 2016), so that
   the best is known well. It ends when another config can hardly be better. In between, changes
   that may gain nothing are left out of the best config.

A config that failed rules out others like it. Where larger batches are faster, some trials keep the
program's own, so that the best of those is known as well.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from types import MappingProxyType

import numpy as np

from autotune.measurement.interval import Interval
from autotune.measurement.outcome import ENDED_BY_US, Outcome
from autotune.measurement.stream import Array, Posterior, StreamModel
from autotune.program.config import Config, KnobValue
from autotune.program.lr import global_batch
from autotune.results.record import AGAIN, TrialRecord, latest
from autotune.results.speedups import seen_in
from autotune.tuning.choosing.bounds import Share, bounded
from autotune.tuning.choosing.choosable import Choosable
from autotune.tuning.choosing.diagnosis import DEVICES
from autotune.tuning.choosing.effects import KnobEffects
from autotune.tuning.choosing.memory import MEMORY, SAVES_HOST_MEMORY, SAVES_MEMORY, Forecast

ALL_IN = "every move that should help, at once"
SIMPLER = "the best so far without changes that may gain nothing"
RACING_SHARE = 0.4  # of the time for trials, at its end
LEADERS = 3  # configs whose neighbours are looked at
MAX_NEIGHBOURS = 100
MAX_LOOKS = 6  # visits of one config
SPACING = 2  # trials between two of the same config
# Expected improvement (a logarithm) below which no config is worth a visit
WORTH = 0.003
# The same once a part of the time has shown nothing better than the program as written
WORTH_IN_VAIN, IN_VAIN_SHARE = 0.015, 0.15
BATCH = ("batch_size", "accumulation_steps")
OWN_BATCH_EVERY = 4  # trials, of which one keeps the program's samples per step
SAME = 0.02  # a loss in log speed that is worth a simpler config
LIKELY_LEVEL = 0.05  # probability of losing no more than that, for a try
WORTH_SIMPLIFYING = 0.03  # log speedup of the best config
Item = tuple[str, KnobValue]
NORMAL = NormalDist()
NO_SHARES: Mapping[str, Share] = MappingProxyType({})
JITTER = 1e-6  # variance that keeps the posterior's matrix regular
DRAWS = 64  # of the posterior, to see whether another config may be best


@dataclass(frozen=True)
class Choice:
    """A config to visit.

    Attributes:
        config: Canonical and without conflicts.
        why: The reason, as users read it.
        expected: Its speedup as it is expected before the visit.
    """

    config: Config
    why: str
    expected: Interval


class Chooser:
    """Chooses from what was recorded; it keeps no state but its random numbers.

    Args:
        space: What may be chosen.
        seed: Seed of the random draws.
        all_in: The first choice; None if no move is sure to help.
        cost_s: Returns the seconds that a trial of a config takes, given the config that the open
            rig ran last.
        shares: What bounds the gain of a knob. A knob that cannot gain enough over the best config
            is not tried.
        memory_bytes: Memory into which a config must fit; None if that is not known.
    """

    def __init__(
        self,
        space: Choosable,
        seed: int,
        all_in: Config | None = None,
        cost_s: Callable[[Config, Config], float] = lambda _here, _config: 1.0,
        shares: Mapping[str, Share] = NO_SHARES,
        memory_bytes: float | None = None,
    ) -> None:
        self._space = space
        self._all_in = all_in
        self._cost_s = cost_s
        self._shares = shares
        self._memory_bytes = memory_bytes
        self._bounded: frozenset[str] = frozenset()
        self._worth = WORTH
        self._random = random.Random(seed)
        self._normal = np.random.default_rng(seed)

    def choose(
        self,
        records: Sequence[TrialRecord],
        share_left: float = 1.0,
        model: StreamModel | None = None,
        guilty: Sequence[Mapping[str, KnobValue]] = (),
    ) -> Choice | None:
        """Return the config that is worth the next visit; None if none is.

        Args:
            records: All trials so far; the first is the baseline.
            share_left: Of the time for trials, 0 to 1.
            model: Of their visits with ``KnobEffects``, where the caller has it.
            guilty: Changes with which the program fails outside of its training loop.
        """
        records = [record for record in records if record.outcome not in ENDED_BY_US]
        if not records or not records[0].visits:
            return None  # recorded by an earlier version: nothing can be expected
        if model is None:
            model = StreamModel(seen_in(records), KnobEffects.of(self._space))
        forecast = Forecast(records, self._memory_bytes)
        pool = _Pool(records, self._space, model, forecast, guilty, SPACING)
        if (first := self._first(pool)) is not None:
            return Choice(first, ALL_IN, self._expected([first], pool)[0])
        ways = self._ways(pool, share_left, len(records))
        if (choice := next((choice for choice in ways if choice is not None), None)) is not None:
            return choice
        return self._doubt(_Pool(records, self._space, model, forecast, guilty, 0))

    def _first(self, pool: _Pool) -> Config | None:
        """Return all moves at once, with the largest batch that fits; None once that was tried."""
        if self._all_in is None:
            return None
        size, sizes = self._all_in.get("batch_size"), self._space.domains.get("batch_size")
        own = pool.baseline.get("batch_size")
        smaller = [
            self._space.canonical(self._all_in.replace(batch_size=value))
            for value in (sizes.values if sizes is not None else ())
            if int(own or 0) < int(value) < int(size or 0)
        ]
        every = [self._all_in, *reversed(smaller)]
        if any(config in pool.looks for config in every):
            return None
        return next(filter(pool.may_visit, every), None)

    def _ways(self, pool: _Pool, share_left: float, count: int) -> Iterator[Choice | None]:
        """Yield what each way to choose makes of it, the one whose turn it is first."""
        candidates = self._candidates(pool)
        is_vain = share_left < 1 - IN_VAIN_SHARE and pool.gain < WORTH_SIMPLIFYING
        self._worth = WORTH_IN_VAIN if is_vain else WORTH
        if is_vain:
            yield self._explore(candidates, pool, pool.best)
            return
        if count % OWN_BATCH_EVERY == 0 and not self._has_own_batch(pool.best):
            own = [config for config in candidates if self._has_own_batch(config)]
            yield self._explore(own, pool, pool.leaders(1, self._has_own_batch)[0])
        if share_left < RACING_SHARE:
            if count % 2 == 0:
                yield self._simplify(pool)
            yield self._race(candidates, pool)
        yield self._explore(candidates, pool, pool.best)
        yield self._simplify(pool)
        yield self._race([config for config in candidates if config in pool.looks], pool)

    def _explore(self, candidates: list[Config], pool: _Pool, best: Config) -> Choice | None:
        """Return the config that promises most over the best of its kind, if it promises enough."""
        others = [config for config in candidates if config != best]
        costs = [self._cost_s(pool.here, config) for config in others]
        posterior = pool.posterior([best, *others])
        gains = _expected_improvements(posterior)[1:]
        worth = [
            (gain / cost_s, number)
            for number, (gain, cost_s) in enumerate(zip(gains, costs, strict=True))
            if gain >= self._worth and cost_s < math.inf
        ]
        if not worth:
            return None
        _, chosen = max(worth)
        return self._choice(others[chosen], posterior, chosen + 1, pool)

    def _doubt(self, pool: _Pool) -> Choice | None:
        """Return the best config if it may well gain something after all, over the baseline.

        It may have been visited just before: nothing else is left to choose.
        """
        is_apart = self._space.needs_restart(pool.here, pool.best)
        if pool.gain >= WORTH_SIMPLIFYING or is_apart or not pool.may_visit(pool.best):
            return None
        posterior = pool.posterior([pool.baseline, pool.best])
        unknown = _expected_improvements(posterior)[1] - max(0.0, pool.gain)
        return self._choice(pool.best, posterior, 1, pool) if unknown >= WORTH_IN_VAIN else None

    def _race(self, candidates: list[Config], pool: _Pool) -> Choice | None:
        """Return the best config or a rival, if another may well be better than the best."""
        able = [c for c in candidates if not self._space.needs_restart(pool.here, c)]
        every = list(dict.fromkeys([pool.best, *able]))
        posterior = pool.posterior(every)
        regular: Array = posterior.covariance + JITTER * np.eye(len(every))
        factor = np.linalg.cholesky(regular)
        noise = self._normal.standard_normal((DRAWS, len(every)))
        drawn: Array = posterior.means + noise @ factor.T
        leads = drawn.max(axis=1) - drawn[:, 0]
        if float(leads.mean()) < self._worth:
            return None
        ahead = drawn[leads > 0].argmax(axis=1).tolist()
        rivals = [number for number in (0, self._random.choice(ahead)) if every[number] in able]
        number = self._random.choice(rivals)
        return self._choice(every[number], posterior, number, pool)

    def _simplify(self, pool: _Pool) -> Choice | None:
        """Return the best config without some of its changes that may well gain nothing.

        Of the choices, the one that is expected to get rid of the most changes.
        """
        fewer = [c for c in self._without_changes(pool) if c not in pool.looks]
        fewer = [c for c in fewer if pool.may_visit(c)]
        if not fewer or pool.gain < WORTH_SIMPLIFYING:
            return None
        posterior = pool.posterior([pool.best, *fewer])
        changes = len(pool.best.changes_from(pool.baseline))
        worth = []
        for number, config in enumerate(fewer, start=1):
            loss, spread = _difference(posterior, 0, number)
            is_level = NORMAL.cdf((SAME - loss) / spread)
            dropped = changes - len(config.changes_from(pool.baseline))
            if is_level >= LIKELY_LEVEL:
                worth.append((is_level * dropped / self._cost_s(pool.here, config), number))
        if not worth:
            return None
        _, chosen = max(worth)
        return replace(self._choice(fewer[chosen - 1], posterior, chosen, pool), why=SIMPLER)

    def _without_changes(self, pool: _Pool) -> list[Config]:
        """Return the best config without each of its changes, and without the least useful ones."""
        changed = [
            knob
            for knob in pool.best.changes_from(pool.baseline)
            if knob in self._space.domains.keys() - DEVICES - self._space.fixed.keys()
        ]

        def without(knobs: Sequence[str]) -> Config:
            kept = pool.best.replace(**{knob: pool.baseline[knob] for knob in knobs})
            return self._space.canonical(kept)

        if not changed:
            return []
        means = pool.posterior([without([knob]) for knob in changed]).means.tolist()
        order = [knob for _, knob in sorted(zip(means, changed, strict=True), reverse=True)]
        some = [order[:count] for count in range(2, len(order))]
        found = dict.fromkeys(without(knobs) for knobs in ([[knob] for knob in order] + some))
        return [c for c in found if self._cost_s(pool.here, c) < math.inf]

    def _choice(self, config: Config, posterior: Posterior, number: int, pool: _Pool) -> Choice:
        expected = _interval(posterior, number)
        why = AGAIN if config in pool.looks else "it may be the fastest, by what was seen so far"
        return Choice(config, why, expected)

    def _expected(self, configs: list[Config], pool: _Pool) -> list[Interval]:
        posterior = pool.posterior(configs)
        return [_interval(posterior, number) for number in range(len(configs))]

    def _candidates(self, pool: _Pool) -> list[Config]:
        """Return configs near the best ones, and visited ones, that may be visited now."""
        leaders = [*pool.leaders(LEADERS), *pool.leaders(1, self._has_own_batch)]
        if "batch_size" in self._space.domains:
            own = {part: pool.baseline[part] for part in BATCH if part in pool.baseline}
            leaders.append(self._space.canonical(pool.best.replace(**own)))
        self._bounded = self._cannot_gain(pool)
        near = dict.fromkeys(
            itertools.chain(leaders, *(self._one_change(leader) for leader in leaders))
        )
        pairs = [
            config
            for one in self._one_change(leaders[0])
            for config in self._one_change(one)
            if config not in near
        ]
        pairs = list(dict.fromkeys(pairs))
        self._random.shuffle(pairs)
        near |= dict.fromkeys(pairs[:MAX_NEIGHBOURS])
        return [config for config in near if pool.may_visit(config)]

    def _cannot_gain(self, pool: _Pool) -> frozenset[str]:
        """Return the knobs whose bound leaves no gain over the best config."""
        speedup = math.exp(pool.gain)
        return frozenset(bounded(self._shares, speedup, self._space.asked | self._space.requested))

    def _has_own_batch(self, config: Config) -> bool:
        return global_batch(config) == global_batch(self._space.baseline)

    def _one_change(self, config: Config) -> Iterator[Config]:
        yield from self._exchanges(config)
        for knob, domain in self._space.domains.items():
            for value in domain.values if knob not in DEVICES | self._bounded else ():
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
    """What was recorded, as the chooser needs it."""

    def __init__(
        self,
        records: Sequence[TrialRecord],
        space: Choosable,
        model: StreamModel,
        forecast: Forecast,
        guilty: Sequence[Mapping[str, KnobValue]],
        spacing: int,
    ) -> None:
        self._space = space
        self._model = model
        self._forecast = forecast
        self._guilty = guilty
        self._mode = next(r.visits[-1].mode for r in reversed(records) if r.visits)
        self._records = latest(records)
        self.baseline = records[0].config
        self.looks = Counter(record.config for record in records)
        self._lately = [record.config for record in records[len(records) - spacing :]]
        self.here = records[-1].config
        self._failed = [
            r for r in self._records if r.ending is not None and r.outcome is not Outcome.RAN_OUT
        ]
        visited = [r.config for r in self._records if r.visits]
        self._sound = {item for config in visited for item in config.items()}
        read = {key[0] for key in model.configs if isinstance(key, tuple)}
        # Of many configs the model leaves out the slower ones, which lead nowhere
        visited = [c for c in visited if c in read and self._may_win(c)]
        means = self.posterior(visited).means
        order = np.argsort(-means, kind="stable")
        self._ranking = [visited[number] for number in order]
        self.best = self._ranking[0]
        self.gain = float(means[order[0]])  # its log speedup

    def leaders(self, count: int, may: Callable[[Config], bool] = lambda _: True) -> list[Config]:
        """Return the fastest configs of some, or of all."""
        return [config for config in self._ranking if may(config)][:count]

    def posterior(self, configs: Sequence[Config]) -> Posterior:
        keys = [(config, self._mode) for config in configs]
        return self._model.speedups(keys, (self.baseline, self._mode))

    def may_visit(self, config: Config) -> bool:
        if config == self.baseline or not self._may_win(config):
            return False
        if config in self._lately or self.looks[config] >= MAX_LOOKS:
            return False
        if any(_rules_out(record, config, self.baseline, self._sound) for record in self._failed):
            return False
        return self._forecast.fits(config) and not self._space.conflicts(config)

    def _may_win(self, config: Config) -> bool:
        """Whether a config may be recommended: by what fails, and by the user's fixed values."""
        if config == self.baseline:
            return True
        if self._space.defers(config):
            return False
        is_guilty = any(changes.items() <= config.items() for changes in self._guilty)
        fixed = self._space.fixed
        return not is_guilty and config == self._space.canonical(config.replace(**fixed))


def _rules_out(failed: TrialRecord, config: Config, baseline: Config, sound: set[Item]) -> bool:
    """Return whether a config must be expected to fail as another one did.

    Args:
        failed: What failed.
        config: What may be visited.
        baseline: The program's own config.
        sound: Knobs with values that some other config has run with. They alone are not to blame.
    """
    changes = failed.config.changes_from(baseline)
    size, other = failed.config.get("batch_size"), config.get("batch_size")
    if failed.outcome in MEMORY and "batch_size" in changes and size is not None:
        is_as_large = other is not None and int(other) >= int(size)
        is_device = failed.outcome is Outcome.OUT_OF_MEMORY
        saving = SAVES_MEMORY if is_device else SAVES_HOST_MEMORY
        return is_as_large and all(config.get(k) == failed.config.get(k) for k in saving)
    suspects = changes.items() - sound
    return (suspects or changes.items()) <= config.items()


def _expected_improvements(posterior: Posterior) -> Array:
    """Return the expected improvement of each config over the first, as log speedups."""
    means, covariance = posterior.means, posterior.covariance
    gains = means - means[0]
    variances = np.diag(covariance) + covariance[0, 0] - 2 * covariance[0]
    spreads = np.sqrt(np.maximum(variances, 1e-12))
    return np.array(
        [
            spread * NORMAL.pdf(gain / spread) + gain * NORMAL.cdf(gain / spread)
            for gain, spread in zip(gains.tolist(), spreads.tolist(), strict=True)
        ]
    )


def _difference(posterior: Posterior, one: int, other: int) -> tuple[float, float]:
    """Return mean and standard deviation of the difference of two configs' log speedups."""
    covariance = posterior.covariance
    variance = covariance[one, one] + covariance[other, other] - 2 * covariance[one, other]
    mean = float(posterior.means[one] - posterior.means[other])
    return mean, math.sqrt(max(float(variance), JITTER))


def _interval(posterior: Posterior, number: int) -> Interval:
    mean = float(posterior.means[number])
    half = 1.96 * math.sqrt(max(float(posterior.covariance[number, number]), 0.0))
    return Interval(math.exp(mean), math.exp(mean - half), math.exp(mean + half))
