"""Proposals: which config is tried next.

The order is: the fixed values alone, the moves of the diagnosis, combinations of the best moves,
restart knobs that the user named, the sampler, and last the values that need a fresh process. In
between, configs that may be the best are measured again: at another time, because visits next to
each other share the machine's pace.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass

from autotune.knobs.space.space import ResolvedSpace
from autotune.measurement.outcome import ENDED_BY_US, Ending, Outcome
from autotune.program.config import Config, KnobValue
from autotune.results.record import AGAIN, TrialRecord, latest
from autotune.tuning.diagnosis import Diagnosis, Family, Move
from autotune.tuning.storage.study import Study, Trial

PATIENCE = 12  # sampled trials without a better one, after which the search has converged
BETTER = 1.01  # a sampled config must beat the best by this factor to restart that count
# Known configs that the sampler may propose in a row before an unseen one is drawn at random: in a
# small space it would go on proposing what it already knows.
REPEATS_ALLOWED = 5
SAME_SPEED = 0.98  # of the fastest: within the noise of live measurements, as fast
# These two change together: the number of ranks says nothing without the strategy that starts them.
DEVICES = frozenset({"strategy", "world_size"})
FRESH = "tried in a fresh process, on top of the best config so far"
AGAIN_EVERY = 2  # new configs, after which one is measured again
MAX_LOOKS = 4  # trials of one config
SPACING = 2  # trials between two of the same config
LAST_LOOKS = 4  # once nothing new is left to try


@dataclass(frozen=True)
class Proposal:
    """A config to measure, with the reason to try it.

    Attributes:
        trial: The open Optuna trial in which the result must be recorded.
        config: Canonical and without conflicts.
        why: Where the proposal comes from, as users read it.
    """

    trial: Trial
    config: Config
    why: str


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
    """

    def __init__(
        self,
        study: Study,
        space: ResolvedSpace,
        diagnosis: Diagnosis,
        seed: int,
        has_time_for_restart: Callable[[str], bool],
    ) -> None:
        self._study = study
        self._space = space
        self._diagnosis = diagnosis
        self._rng = random.Random(seed)
        self._has_time_for_restart = has_time_for_restart

    def __iter__(self) -> Iterator[Proposal]:
        """Yield until every way to a better config has been tried; the caller may stop earlier.

        Trials that the user or the budget ended do not count as results.
        """
        for count, proposal in enumerate(self._unseen(), start=1):
            yield proposal
            if count % AGAIN_EVERY == 0:
                yield from self._again()
        for _ in range(LAST_LOOKS):
            yield from self._again()

    def _again(self) -> Iterator[Proposal]:
        """Yield the config that is most likely to be the best, if it should be measured again.

        Only configs count that the open rig can run, and whose interval reaches that of the best.
        """
        records = self._study.records
        looks = [record.config for record in records]
        ranking = ranked(records, self._space)
        if not ranking:
            return
        best = max(r.speedup.low for r in ranking if r.speedup)
        contenders = [
            record
            for record in ranking
            if record.speedup is not None
            and record.speedup.high > max(best, 1.0)
            and looks.count(record.config) < MAX_LOOKS
            and record.config not in looks[-SPACING:]
            and not self._space.needs_restart(looks[-1], record.config)
        ]
        if contenders:
            config = max(contenders, key=_most).config
            yield Proposal(self._study.ask_for(config, self._space), config, AGAIN)

    def _unseen(self) -> Iterator[Proposal]:
        """Yield configs without a result, in the order in which they are worth trying."""
        space = self._space
        yield from self._new(space.start, "the fixed values alone")
        for move in self._diagnosis.moves:
            yield from self._new(space.start.replace(**move.changes), move.why)
        for changes in combinations(self._diagnosis.moves, self._known(), space):
            yield from self._new(space.start.replace(**changes), "the best moves together")
        if space.asked & DEVICES:
            yield from self._on_devices()
        for knob, value in restarts(space, space.asked):
            yield from self._restarted(knob, value, "asked for")
        yield from self._sampled()
        yield from self._on_devices()
        for knob, value in restarts(space, space.restart - space.asked):
            best = self._incumbent()
            yield from self._restarted(knob, value, FRESH)
            # In the better process, other values of the live knobs may be best.
            if self._incumbent() != best:
                yield from self._sampled()

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

    def _restarted(self, knob: str, value: KnobValue, why: str) -> Iterator[Proposal]:
        if self._has_time_for_restart(knob):
            yield from self._new(self._incumbent().replace(**{knob: value}), why)

    def _on_devices(self) -> Iterator[Proposal]:
        """Yield each strategy with its numbers of ranks, applied to the best config so far.

        All of them start from the same config, so that they compare with each other. Each needs a
        fresh process, so they are skipped when there is no time for one.
        """
        before = self._incumbent()
        for move in self._diagnosis.devices:
            if self._has_time_for_restart("strategy"):
                yield from self._new(self._fitting(before.replace(**move.changes)), move.why)

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
        best, idle, repeats = self._best_speedup(), 0, 0
        while idle < PATIENCE:
            trial, config = self._study.propose(self._space, self._incumbent())
            known = self._known()
            if conflicts := self._space.conflicts(config):
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
                unseen = [c for c in self._space.configs(self._incumbent()) if c not in known]
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


def _conflicting(config: Config, sentences: Sequence[str]) -> TrialRecord:
    ending = Ending(Outcome.CONFLICT, " ".join(sentences))
    return TrialRecord(config, "proposed by the sampler", None, ending, None, None, 0.0)


def ranked(records: Sequence[TrialRecord], space: ResolvedSpace) -> list[TrialRecord]:
    """Return the measured records that may win, best first.

    They are ordered by the lower bound of their speedup, so that a noisy window does not win by
    chance. Among those as fast as the best, within the noise of a live measurement, the one with
    the fewest changes comes first: a knob without effect does not belong in a best config. The
    baseline and configs without the user's fixed values are left out.
    """
    able = [
        r
        for r in latest(records)
        if r.speedup is not None
        and r.config != space.baseline
        and r.config == space.canonical(r.config.replace(**space.fixed))
    ]
    if not able:
        return []
    fastest = max(r.speedup.low for r in able if r.speedup)

    def order(record: TrialRecord) -> tuple[bool, int, float]:
        assert record.speedup is not None, "only measured records are ranked"
        is_level = record.speedup.low >= SAME_SPEED * fastest
        changes = len(record.config.changes_from(space.baseline))
        return (not is_level, changes if is_level else 0, -record.speedup.low)

    return sorted(able, key=order)


def _most(record: TrialRecord) -> float:
    """Return what a config may gain at most."""
    return record.speedup.high if record.speedup is not None else 0.0


def combinations(
    moves: Sequence[Move], known: Mapping[Config, TrialRecord], space: ResolvedSpace
) -> Iterator[dict[str, KnobValue]]:
    """Yield the knobs of combined moves: the best of each family, first all families, last pairs.

    A family's best move is used even if it gained nothing alone: workers that compete with compute
    threads for cores may pay off once the step itself is cheaper.

    Args:
        moves: The moves of the diagnosis.
        known: Results so far, by canonical config; families without a measured move are left out.
        space: Makes the configs canonical.
    """
    best: dict[Family, Mapping[str, KnobValue]] = {}
    for family in Family:
        tried = [
            (record.speedup.estimate, place, move.changes)
            for place, move in enumerate(moves)
            if move.family is family
            and (record := known.get(space.canonical(space.start.replace(**move.changes))))
            and record.speedup
        ]
        if tried:
            best[family] = max(tried, key=lambda entry: (entry[0], -entry[1]))[2]
    for count in range(len(best), 1, -1):
        for families in itertools.combinations(best, count):
            yield {knob: value for family in families for knob, value in best[family].items()}


def restarts(space: ResolvedSpace, knobs: Container[str]) -> Iterator[tuple[str, KnobValue]]:
    """Yield each knob of *knobs* that needs a fresh process with each value but the baseline's.

    ``DEVICES`` are left out, because their values are tried as pairs.
    """
    for knob in space.domains:
        if knob in space.restart and knob in knobs and knob not in DEVICES:
            for value in space.domains[knob].values:
                if value != space.baseline[knob]:
                    yield knob, value
