"""Ways to search: each proposes what is measured next and says what it recommends so far."""

from __future__ import annotations

import math
import warnings
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from statistics import fmean

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution

from autotune.measurement.stream import StreamModel
from autotune.program.config import Config, KnobValue
from autotune.program.domain import Domain
from autotune.results.record import TrialRecord
from autotune.tuning.choosing.chooser import Chooser
from autotune.tuning.choosing.diagnosis import DEVICES, SURE, SURE_GROWTH_CPU
from autotune.tuning.choosing.effects import KnobEffects
from autotune.tuning.choosing.ranking import SAME_SPEED
from autotune.tuning.choosing.sampler import make_sampler
from benchmarks.replay.tables import Table
from benchmarks.replay.world import Run


class Way(ABC):
    """A way to search, in one run.

    Args:
        run: Answers.
        budget_s: Seconds that the search has.
        owns_process: Whether each measurement has a process of its own, as where no rig switches.
    """

    def __init__(self, run: Run, budget_s: float, *, owns_process: bool = False) -> None:
        self.run, self.budget_s = run, budget_s
        self._owns_process = owns_process
        self.table: Table = run.world.table
        self.able = set(run.world.truth)
        self.rates: dict[Config, list[float]] = defaultdict(list)
        self._measure(self.table.baseline)
        self.run.now_s = 0.0  # every way begins with a measured baseline

    def go_on(self, until_s: float) -> None:
        """Search until then, or until nothing is left to measure."""
        while self.run.now_s < until_s:
            config = self.propose()
            if config is None:
                return
            self._measure(config)

    @abstractmethod
    def propose(self) -> Config | None:
        """Return the next config to measure; None if the search is over."""

    def recommend(self) -> Config:
        """Return the best config so far: the one with the best mean."""
        return max(self.rates, key=lambda config: fmean(self.rates[config]))

    def _measure(self, config: Config) -> None:
        measure = self.run.start if self._owns_process else self.run.visit
        self.rates[config].append(measure(config))


class Clairvoyant(Way):
    """Knows the truth: what no search can beat."""

    def propose(self) -> Config | None:
        """Return nothing: there is nothing to learn."""
        return None

    def recommend(self) -> Config:
        """Return the best config."""
        return max(self.able, key=lambda config: self.run.world.truth[config])


class Random(Way):
    """Measures configs in any order."""

    def propose(self) -> Config | None:
        """Return a config that was not measured yet."""
        left = sorted(self.able - self.rates.keys(), key=str)
        return self.run.random.choice(left) if left else None


class Greedy(Way):
    """Changes one knob after the other and keeps what was faster."""

    def __init__(self, run: Run, budget_s: float, *, owns_process: bool = False) -> None:
        super().__init__(run, budget_s, owns_process=owns_process)
        self._next = self._all()

    def propose(self) -> Config | None:
        """Return the best so far with one knob changed; after all knobs, begin again."""
        return next(self._next, None)

    def _all(self) -> Iterator[Config]:
        while True:
            for knob, values in self.table.knobs.items():
                best = self.recommend()
                for value in values:
                    config = best.replace(**{knob: value})
                    if value != best[knob] and config in self.able:
                        yield config


class Sampled(Way):
    """Optuna proposes, by one of its samplers."""

    name = "tpe"

    def __init__(self, run: Run, budget_s: float, *, owns_process: bool = False) -> None:
        super().__init__(run, budget_s, owns_process=owns_process)
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        warnings.simplefilter("ignore")
        self._study = optuna.create_study(
            direction="maximize", sampler=make_sampler(self.name, run.random.randrange(2**31))
        )
        self._space: dict[str, BaseDistribution] = {
            knob: CategoricalDistribution(values) for knob, values in self.table.knobs.items()
        }
        self._study.enqueue_trial(dict(self.table.baseline))
        self._trial = self._study.ask(self._space)
        self._told(self.table.baseline)

    def propose(self) -> Config | None:
        """Return what the sampler proposes; what cannot be measured is told as failed."""
        for _ in range(100):
            self._trial = self._study.ask(self._space)
            config = Config(self._trial.params)
            if config in self.able:
                return config
            self._study.tell(self._trial, state=optuna.trial.TrialState.FAIL)
        return None

    def _told(self, config: Config) -> None:
        self._study.tell(self._trial, self.rates[config][-1])

    def _measure(self, config: Config) -> None:
        super()._measure(config)
        if hasattr(self, "_trial"):
            self._told(config)


class GP(Sampled):
    """Optuna's Gaussian process."""

    name = "gp"


@dataclass(frozen=True)
class _Space:
    """The configs of a table."""

    baseline: Config
    domains: dict[str, Domain]
    able: frozenset[Config]
    fixed: dict[str, KnobValue] = field(default_factory=dict)
    asked: frozenset[str] = frozenset()
    requested: frozenset[str] = frozenset()

    def canonical(self, config: Config) -> Config:
        idle = {"persistent_workers": False} if config.get("num_workers") == 0 else {}
        return config.replace(**{k: v for k, v in idle.items() if k in config})

    def conflicts(self, config: Config) -> Sequence[str]:
        return () if config in self.able else ("it was not recorded",)

    def needs_restart(self, _here: Config, _there: Config) -> bool:
        return False

    def defers(self, _config: Config) -> bool:
        return False


class Autotune(Way):
    """The search's own chooser and model; without pilots if they are taken away."""

    is_paced = True

    def __init__(self, run: Run, budget_s: float, *, owns_process: bool = False) -> None:
        domains = {knob: Domain(values) for knob, values in run.world.table.knobs.items()}
        self._space = _Space(run.world.table.baseline, domains, frozenset(run.world.truth))
        self._chooser = Chooser(
            self._space,
            run.random.randrange(2**31),
            self._space.canonical(all_in(run.world.table)),
            lambda _here, config: run.world.cost_s(config) if config in run.world.truth else 2.0,
        )
        self._records: list[TrialRecord] = []
        self._visits = 0
        super().__init__(run, budget_s, owns_process=owns_process)

    def propose(self) -> Config | None:
        """Return what the chooser makes worth a visit, or the baseline where it is due."""
        if self._visits % 8 == 7:
            return self.table.baseline
        share_left = max(0.0, 1 - self.run.now_s / self.budget_s)
        choice = self._chooser.choose(self._records, share_left)
        return None if choice is None else choice.config

    def recommend(self) -> Config:
        """Return the best config by the model; among equals, the one with the fewest changes."""
        model = StreamModel(self.run.seen, KnobEffects.of(self._space))
        visited = list(self.rates)
        means = model.speedups(visited, self.table.baseline).means.tolist()
        level = [
            c for c, m in zip(visited, means, strict=True) if m >= max(means) + math.log(SAME_SPEED)
        ]
        return min(
            level,
            key=lambda c: (len(c.changes_from(self.table.baseline)), -means[visited.index(c)]),
        )

    def _measure(self, config: Config) -> None:
        self.rates[config].append(self.run.visit(config, is_paced=self.is_paced))
        self._visits += 1
        record = TrialRecord(config, "", None, None, None, None, 0.0, (self.run.seen[-1][1],))
        if config == self.table.baseline and self._records:
            first = self._records[0]
            visits = (*first.visits, *record.visits)
            self._records[0] = TrialRecord(config, "", None, None, None, None, 0.0, visits)
        else:
            self._records.append(record)


class Unpaced(Autotune):
    """The same without pilots."""

    is_paced = False


def all_in(table: Table) -> Config:
    """Return every move of a table that usually helps on a CPU, as a search would begin."""
    changes: dict[str, KnobValue] = {
        knob: next(value for value in values if value in table.knobs[knob])
        for knob, values in SURE
        if set(values) & set(table.knobs.get(knob, ()))
    }
    if "batch_size" in table.knobs:
        own = int(table.baseline["batch_size"])
        sizes = [int(size) for size in table.knobs["batch_size"]]
        changes["batch_size"] = max(size for size in sizes if size <= SURE_GROWTH_CPU * own)
    if 1 in table.knobs.get("num_workers", ()):
        changes |= {"num_workers": 1, "num_threads": 1}
        if "persistent_workers" in table.knobs:
            changes["persistent_workers"] = True
    return table.baseline.replace(**{k: v for k, v in changes.items() if k not in DEVICES})
