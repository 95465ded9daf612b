"""Proposals: which config is tried next.

Where autotune chooses, each trial is what the model of all visits makes worth measuring
(``Chooser``). With one of Optuna's samplers, that proposes the configs that the open process can
run; values that need a fresh process come after it.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from operator import ne
from statistics import fmean

from autotune.knobs.space.space import ResolvedSpace
from autotune.measurement.interval import Interval
from autotune.measurement.outcome import ENDED_BY_US, Ending, Outcome
from autotune.program.config import Config, KnobValue
from autotune.results.record import TrialRecord, latest
from autotune.tuning.choosing.chooser import Chooser
from autotune.tuning.choosing.diagnosis import DEVICES, Diagnosis
from autotune.tuning.choosing.ranking import ranked
from autotune.tuning.choosing.sampler import OURS
from autotune.tuning.storage.study import Study, Trial

PATIENCE = 12  # sampled trials without a better one, after which the search has converged
BETTER = 1.01  # a sampled config must beat the best by this factor to restart that count
# Known configs that the sampler may propose in a row before an unseen one is drawn at random: in a
# small space it would go on proposing what it already knows.
REPEATS_ALLOWED = 5
GROWN = "with more samples in a step, to tell what that would gain"
GROWN_SHARE = 0.4  # of the time for trials that is left when that is tried, once
GROWN_GAIN = 1.02  # speedup of more samples that is worth trying still more
FRESH = "tried in a fresh process, on top of the best config so far"
# Share of the time for trials that is left when restart knobs are tried that were asked for
ASKED_SHARE = 0.7
LATEST_VISITS = 40  # by which the duration of another one is foreseen
SWITCH_S = 0.7  # of a visit, besides what it waits and measures
# More where workers hold a deeper buffer than torch's: its batches must be used up before the speed
# is that of the loader. Seen: 3-20 s.
SETTLE_S = 5.0
SHALLOW = 2  # torch's own prefetch factor
RESTART_S = 6.0  # a trial in a fresh process, without the starts


@dataclass(frozen=True)
class Proposal:
    """A config to measure, with the reason to try it.

    Attributes:
        trial: The open Optuna trial in which the result must be recorded.
        config: Canonical and without conflicts.
        why: Where the proposal comes from, as users read it.
        expected: Its speedup as it was expected before; None where nothing was.
    """

    trial: Trial
    config: Config
    why: str
    expected: Interval | None = None


class Proposals:
    """Iterates over the configs to measure, in the order in which they are worth trying.

    It reads the study anew for each proposal. So each proposal builds on all results so far, and a
    resumed search continues where the earlier session stopped. The caller must record each proposal
    before it requests the next one.

    Args:
        study: The record so far.
        space: What may be proposed.
        diagnosis: Gives the first moves.
        seed: Seed of the choices that the sampler does not make.
        has_time_for_restart: Tells whether a fresh process is still worth starting for a knob.
        share_left: Returns how much of the time for trials is left, 0 to 1.
    """

    def __init__(
        self,
        study: Study,
        space: ResolvedSpace,
        diagnosis: Diagnosis,
        seed: int,
        has_time_for_restart: Callable[[str], bool],
        share_left: Callable[[], float] = lambda: 1.0,
    ) -> None:
        self._study = study
        self._space = space
        self._diagnosis = diagnosis
        self._rng = random.Random(seed)
        self._has_time_for_restart = has_time_for_restart
        self._share_left = share_left
        self._took_s: list[tuple[tuple[KnobValue, ...], float]] = []
        facts = study.facts
        self._startup_s = facts.startup_s if facts is not None else 0.0
        self._is_grown = False
        sure = diagnosis.all_in
        self._chooser = Chooser(
            space,
            seed,
            self._allowed(space.start.replace(**sure)) if sure else None,
            self._cost_s,
            diagnosis.shares,
            _memory_bytes(study),
        )

    def __iter__(self) -> Iterator[Proposal]:
        """Yield until every way to a better config has been tried; the caller may stop earlier.

        Trials that the user or the budget ended do not count as results.
        """
        space = self._space
        yield from self._new(space.start, "the fixed values alone")
        if space.asked & DEVICES:
            yield from self._on_devices()
        if self._study.head.options.sampler == OURS:
            yield from self._chosen()
            return
        yield from self._sampled()
        yield from self._on_devices()
        for knob, value in restarts(space):
            best = self._incumbent()
            yield from self._restarted(knob, value)
            # In the better process, other values of the live knobs may be best.
            if self._incumbent() != best:
                yield from self._sampled()
        yield from self._grown()

    def _chosen(self) -> Iterator[Proposal]:
        """Yield what the model makes worth measuring; values that were asked for in any case."""
        while True:
            if self._share_left() < ASKED_SHARE:
                for knob, value in restarts(self._space, self._space.asked):
                    yield from self._restarted(knob, value)
            if self._share_left() < GROWN_SHARE:
                yield from self._grown()
            self._took_s = _visit_seconds(self._study.records)
            choice = self._chooser.choose(
                self._study.records,
                self._share_left(),
                self._study.model,
                self._study.guilty,
            )
            if choice is None:
                before = len(self._study.records)
                yield from self._last()
                yield from self._grown()
                if len(self._study.records) == before:
                    return
                continue
            trial = self._study.ask_for(choice.config, self._space)
            yield Proposal(trial, choice.config, choice.why, choice.expected)
            for config, why in self._study.hints:
                yield from self._new(self._allowed(config), why)

    def _grown(self) -> Iterator[Proposal]:
        """Yield the best config with ever more samples in a step, once, if these are deferred."""
        space, best = self._space, self._incumbent()
        sizes = space.domains.get("batch_size")
        if self._is_grown or not space.defers_growth or sizes is None:
            return
        self._is_grown = True
        before = self._speedup(best)
        for size in sorted(int(value) for value in sizes.values):
            grown = space.canonical(best.replace(batch_size=size))
            if size <= int(best["batch_size"]) or not space.defers(grown):
                continue
            yield from self._new(grown, GROWN)
            if self._speedup(grown) < GROWN_GAIN * before:
                return
            before = self._speedup(grown)

    def _speedup(self, config: Config) -> float:
        record = self._known().get(config)
        return record.speedup.estimate if record is not None and record.speedup else 1.0

    def _allowed(self, config: Config) -> Config:
        """Return the config, with the program's own global batch if another one is deferred."""
        config = self._space.canonical(config)
        return self._space.with_own_batch(config) if self._space.defers(config) else config

    def _last(self) -> Iterator[Proposal]:
        """Yield what is tried once the chooser expects nothing of what the rig can run."""
        for knob, value in restarts(self._space, self._space.asked):
            yield from self._restarted(knob, value)
        yield from self._on_devices()
        for knob, value in restarts(self._space):
            yield from self._restarted(knob, value)

    def _cost_s(self, here: Config, config: Config) -> float:
        """Return the seconds that a trial takes; infinite if there is no time for a restart."""
        live_s = self._visit_s(config)
        if config.get("num_workers") and int(config.get("prefetch_factor", SHALLOW)) > SHALLOW:
            live_s += SETTLE_S
        restarting = self._space.restart & config.changes_from(here).keys()
        if not restarting:
            return live_s
        if not all(self._has_time_for_restart(knob) for knob in restarting):
            return math.inf
        return live_s + RESTART_S + 2 * self._startup_s

    def _visit_s(self, config: Config) -> float:
        """Return the seconds that a visit takes: what those of the most similar configs took.

        A large buffer, for example, fills slowly.
        """
        values = config.values_by_knob.values()
        apart = [sum(map(ne, values, of)) for of, _ in self._took_s]
        near = [
            took_s for (_, took_s), n in zip(self._took_s, apart, strict=True) if n == min(apart)
        ]
        return SWITCH_S + fmean(near)

    def _known(self) -> dict[Config, TrialRecord]:
        records = latest(self._study.records)
        return {r.config: r for r in records if r.outcome not in ENDED_BY_US}

    def _incumbent(self) -> Config:
        ranking = ranked(list(self._known().values()), self._space)
        return ranking[0].config if ranking else self._space.start

    def _new(self, config: Config, why: str) -> Iterator[Proposal]:
        config = self._space.canonical(config)
        if config not in self._known() and not self._space.conflicts(config):
            yield Proposal(self._study.ask_for(config, self._space), config, why)

    def _restarted(self, knob: str, value: KnobValue) -> Iterator[Proposal]:
        """Yield the best config so far with a value that needs a fresh process.

        Once per value: the best config may change.
        """
        is_tried = any(config.get(knob) == value for config in self._known())
        if not is_tried and self._has_time_for_restart(knob):
            yield from self._new(self._incumbent().replace(**{knob: value}), FRESH)

    def _on_devices(self) -> Iterator[Proposal]:
        """Yield each strategy with its numbers of ranks, applied to the best config so far.

        All of them start from the same config, so that they compare with each other. Each needs a
        fresh process, so they are skipped when there is no time for one.
        """
        before = self._incumbent()
        for move in self._diagnosis.devices:
            if self._has_time_for_restart("strategy"):
                fitting = self._fitting(before.replace(**move.changes))
                yield from self._new(self._allowed(fitting), move.why)

    def _fitting(self, config: Config) -> Config:
        """Return the config with its batch per rank reduced until a step is within the limit.

        More ranks multiply the samples of a step, so a batch that was best on one rank can exceed
        the maximum global batch on four. The batch is never reduced below the program's batch; the
        config is returned unchanged if nothing fits.
        """
        sizes = self._space.domains.get("batch_size")
        if sizes is None or not self._space.conflicts(self._space.canonical(config)):
            return config
        own = self._space.baseline["batch_size"]
        smaller = sorted(
            (n for n in sizes.values if int(own) <= int(n) < int(config["batch_size"])), key=int
        )
        for size in reversed(smaller):
            fitting = config.replace(batch_size=size)
            if not self._space.conflicts(self._space.canonical(fitting)):
                return fitting
        return config

    def _sampled(self) -> Iterator[Proposal]:
        space = self._space.with_kept_batch()
        best, idle, repeats = self._best_speedup(), 0, 0
        while idle < PATIENCE:
            trial, config = self._study.propose(space, self._incumbent())
            known = self._known()
            if conflicts := space.conflicts(config):
                # Counted like a trial that gained nothing: a sampler that proposes little but
                # conflicts must not keep the search going.
                self._study.tell(trial, _conflicting(config, conflicts))
                idle += 1
                continue
            if config in known:
                self._study.tell_again(trial, known[config])
                repeats += 1
                if repeats <= REPEATS_ALLOWED:
                    continue
                unseen = [c for c in space.configs(self._incumbent()) if c not in known]
                if not unseen:
                    return
                config = self._rng.choice(unseen)
                trial = self._study.ask_for(config, self._space)
            repeats = 0
            yield Proposal(trial, config, "proposed by the sampler")
            now = self._best_speedup()
            best, idle = (now, 0) if now > best * BETTER else (best, idle + 1)

    def _best_speedup(self) -> float:
        return max((r.speedup.low for r in self._known().values() if r.speedup), default=1.0)


def _visit_seconds(records: Sequence[TrialRecord]) -> list[tuple[tuple[KnobValue, ...], float]]:
    """Return the seconds of the latest visits: what they waited and what they measured.

    Each with the values of its config.
    """
    seen = [(r.config, r.measurement) for r in records if r.measurement is not None]
    return [
        (
            tuple(config.values()),
            measured.warmup_s + sum(block.seconds for block in measured.blocks),
        )
        for config, measured in seen[-LATEST_VISITS:]
    ]


def _memory_bytes(study: Study) -> float | None:
    """Return the memory that a config may use: of the device where one is used, else of the host.

    None if the baseline's use is not known.
    """
    used = next((r.measurement.memory for r in study.records if r.measurement is not None), None)
    if used is None or used.peak_bytes is None:
        return None
    capacity = study.hardware.capacity_bytes(on_device=used.is_on_device)
    return study.head.options.goal.limit_bytes(capacity)


def _conflicting(config: Config, sentences: Sequence[str]) -> TrialRecord:
    ending = Ending(Outcome.CONFLICT, " ".join(sentences))
    return TrialRecord(config, "proposed by the sampler", None, ending, None, None, 0.0)


def restarts(
    space: ResolvedSpace, knobs: Container[str] | None = None
) -> Iterator[tuple[str, KnobValue]]:
    """Yield each knob that needs a fresh process with each value but the baseline's.

    ``DEVICES`` are left out, because their values are tried as pairs.

    Args:
        space: What may be proposed.
        knobs: Only these; None means all.
    """
    for knob in space.domains:
        is_meant = knobs is None or knob in knobs
        if knob in space.restart and is_meant and knob not in DEVICES:
            for value in space.domains[knob].values:
                if value != space.baseline[knob]:
                    yield knob, value
