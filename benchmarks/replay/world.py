"""World: a recorded program whose configs can be visited again in virtual time.

The true speed of each config is what its visits say, smoothed over configs that differ in few knobs
(a Gaussian process whose kernel falls with the number of knobs that differ). That is another kernel
than the search's own, so that the search is not judged by its own assumptions. What the visits
differ by from the truth is played as it was recorded, in its order in time and with its pilots,
from a moment drawn at random.
"""

from __future__ import annotations

import itertools
import math
import random
from collections import defaultdict
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np

from autotune.measurement.pilot import Pace
from autotune.measurement.stream import Array
from autotune.measurement.visit import Visit
from autotune.program.config import Config
from benchmarks.pace import centred, coefficients
from benchmarks.replay.tables import Table

LENGTHS = (1.0, 2.0, 4.0, 8.0)  # knobs that differ, after which two configs are little alike
EFFECTS = (0.1, 0.2, 0.4, 0.8)  # spreads of the log speeds
NOISES = (0.01, 0.02, 0.04, 0.08)  # of a config's own mean
PROCESS_SPREAD = 0.05  # of the speed of equal processes
OWN_WINDOW = 5  # visits' worth of time that a process of its own is measured
TIED = 0.99  # of the best: configs that count as best as well


@dataclass(frozen=True)
class Moment:
    """What a visit differed by from the truth, when it was recorded.

    Attributes:
        at_s: When.
        off: By how much its log rate differed.
        own_spread: As it was recorded.
        pace: As it was recorded.
    """

    at_s: float
    off: float
    own_spread: float
    pace: Pace | None


class World:
    """A recorded program.

    Args:
        table: What was recorded.

    Attributes:
        truth: Log speed of each config over the baseline.
        best: The largest of them.
        start_s: Seconds that a process takes until it can be measured.
    """

    def __init__(self, table: Table, start_s: float = 6.0) -> None:
        self.table, self.start_s = table, start_s
        seen = [(config, visit) for config, visit, _ in table.visits]
        configs = list(dict.fromkeys(config for config, _ in seen))
        speeds = _smoothed(configs, seen, table.baseline).tolist()
        self.truth: dict[Config, float] = dict(zip(configs, speeds, strict=True))
        self.best = max(self.truth.values())
        costs: dict[Config, list[float]] = defaultdict(list)
        for config, _, cost_s in table.visits:
            costs[config].append(cost_s)
        self._cost_s = {config: fmean(of) for config, of in costs.items()}
        self.moments = self._moments(seen)

    def cost_s(self, config: Config) -> float:
        """Return the seconds of a visit."""
        return self._cost_s[config]

    def reached(self, config: Config) -> float:
        """Return the speed of a config as a share of the best, 1 if it is tied with the best."""
        share = math.exp(self.truth[config] - self.best)
        return 1.0 if share >= TIED else share

    def _moments(self, seen: list[tuple[Config, Visit]]) -> list[Moment]:
        """Return what the visits differed by from the truth, in time."""
        counts = {config: sum(c == config for c, _ in seen) for config, _ in seen}
        level = fmean(v.log_rate - self.truth[c] for c, v in seen)
        found = []
        for config, visit in sorted(seen, key=lambda one: one[1].at_s):
            off = visit.log_rate - self.truth[config] - level
            # The truth was learned from the visit itself, which made the difference smaller
            off *= math.sqrt(counts[config] / max(0.5, counts[config] - 0.5))
            found.append(Moment(visit.at_s, off, visit.own_spread, visit.pace))
        return found


class Run:
    """A search in a world, from a moment drawn at random.

    Attributes:
        now_s: Seconds that the search has used.
        seen: Its visits.
    """

    def __init__(self, world: World, seed: int) -> None:
        self.world = world
        self.random = random.Random(seed)
        self.now_s = 0.0
        self.seen: list[tuple[Config, Visit]] = []
        self._moments = itertools.cycle(world.moments)
        for _ in range(self.random.randrange(len(world.moments))):
            next(self._moments)

    def visit(self, config: Config, *, is_paced: bool = True) -> float:
        """Visit a config in the running program; return its log rate."""
        moment = next(self._moments)
        self.now_s += self.world.cost_s(config)
        rate = float(self.world.truth[config] + moment.off)
        pace = moment.pace if is_paced else None
        self.seen.append((config, Visit(1, self.now_s, rate, moment.own_spread, pace)))
        return rate

    def start(self, config: Config) -> float:
        """Measure a config in a process of its own, as others do; return its log rate."""
        off = fmean(next(self._moments).off for _ in range(OWN_WINDOW))
        self.now_s += self.world.start_s + OWN_WINDOW * self.world.cost_s(config)
        return float(self.world.truth[config] + off + self.random.gauss(0.0, PROCESS_SPREAD))


def _smoothed(configs: list[Config], seen: list[tuple[Config, Visit]], baseline: Config) -> Array:
    """Return the log speed of each config over the baseline."""
    means = _means(configs, seen)
    apart = np.array([[len(a.changes_from(b)) for b in configs] for a in configs], float)
    left = means - float(np.median(means))
    best, found = -math.inf, means
    for length, spread, noise in itertools.product(LENGTHS, EFFECTS, NOISES):
        prior = spread**2 * np.exp(-apart / length)
        factor = np.linalg.cholesky(prior + noise**2 * np.eye(len(configs)))
        solved = np.linalg.solve(factor, left)
        likelihood = -0.5 * float(solved @ solved) - float(np.log(np.diag(factor)).sum())
        if likelihood > best:
            best, found = likelihood, prior @ np.linalg.solve(factor.T, solved)
    return np.asarray(found - found[configs.index(baseline)], np.float64)


def _means(configs: list[Config], seen: list[tuple[Config, Visit]]) -> Array:
    """Return the mean log rate of each config, at the median pace of the machine.

    What the pace explains is learned from visits of one config at different paces.
    """
    paced = [(str(config), visit, visit.pace) for config, visit in seen if visit.pace is not None]
    slopes = np.zeros(2)
    middle = Pace(0.0, 0.0)
    if paced:
        rates, paces = centred(paced)
        slopes = coefficients(rates, paces)
        every = [pace for _, _, pace in paced]
        middle = Pace(
            median(pace.one_core for pace in every), median(pace.all_cores for pace in every)
        )
    corrected: dict[Config, list[float]] = defaultdict(list)
    for config, visit in seen:
        pace = middle if visit.pace is None else visit.pace
        off = np.array([pace.one_core - middle.one_core, pace.all_cores - middle.all_cores])
        corrected[config].append(visit.log_rate - float(slopes @ off))
    return np.array([fmean(corrected[config]) for config in configs])
