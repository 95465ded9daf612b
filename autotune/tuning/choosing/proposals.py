"""Proposals: which config enters the race next.

Where autotune chooses, that is what the rounds make worth a seat (``Chooser``). With one of
Optuna's samplers, that proposes the configs that the open process can run. Values that need a fresh
process come after the race.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import replace

from autotune.knobs.space.space import ResolvedSpace
from autotune.measurement.outcome import ENDED_BY_US, Ending, Outcome
from autotune.program.config import Config, KnobValue
from autotune.program.lr import PARTS
from autotune.results.record import TrialRecord, latest
from autotune.tuning.choosing.chooser import Chooser, Field, Proposal
from autotune.tuning.choosing.diagnosis import DEVICES, REPLICAS, Diagnosis
from autotune.tuning.choosing.ranking import ranked, recommended
from autotune.tuning.choosing.sampler import Sampler, make_sampler
from autotune.tuning.plan import COMPILING_S
from autotune.tuning.storage.study import Study

PATIENCE = 12  # configs of a sampler in a row that it knew or that conflict, after which it is done
GROWN = "with more samples in a step, to tell what that would gain"
GROWN_SHARE = 0.4  # of the time for trials that is left when that is tried, once
SIMPLER = "the best so far without the changes that seem to give nothing"
RETURNS = "the best so far, to be compared with those that came after it"
ELSEWHERE = "the best so far, measured on another machine"
FRESH = "tried in a fresh process, on top of the best config so far"
# Until a config has taken its seat, and where workers start. A 12 % gain that no worker gives was
# claimed in 8 of 8 virtual searches of 90 s, and in 3 where both were alike
SEAT_S, LOADER_SEAT_S = 1.0, 2.0


Move = tuple[Mapping[str, KnobValue], str]  # changes of a config, and why it is tried


class Proposals:
    """Says which config is tried next, by all that the study holds."""

    def __init__(
        self,
        study: Study,
        space: ResolvedSpace,
        diagnosis: Diagnosis,
        allows: Callable[[Config], bool] = lambda _: True,
    ) -> None:
        self._study = study
        self._space = space
        self._diagnosis = diagnosis
        self._allows = allows
        options, sure = study.head.options, diagnosis.all_in
        seed = options.seed + study.sharing.number  # machines do not all try the same
        # A search that goes on does not repeat its draws
        self._sampler = make_sampler(Sampler(options.sampler), seed + len(study.records))
        self._is_done = False  # one of Optuna's samplers, which knows of no new config
        self._chooser = Chooser(
            space,
            seed,
            space.allowed(space.start.replace(**sure)) if sure else None,
            self._cost_s,
            _memory_bytes(study),
            spreads=not study.sharing.is_alone,
        )

    def next(self, field: Field) -> Proposal | None:
        """Return the config that enters the race next; None if none is worth a seat now."""
        field = self._with_best(field)
        known = {r.config for r in latest(field.records) if r.outcome not in ENDED_BY_US}
        first = self._new(self._space.start, "what all configs have but the program's own", known)
        if first is not None:
            return first
        if field.share_left < GROWN_SHARE and (grown := self.grown(field)) is not None:
            return grown
        if self._sampler is not None:
            return self._sampled(field, known)
        return self._chooser.choose(field)

    def of_best(self, field: Field) -> Mapping[Config, str]:
        """Return the best config, and what is simpler and may be as good, with the reasons."""
        field = self._with_best(field)
        best = field.best
        if best is None or best == self._space.baseline:
            return {}
        simplest = self._chooser.simplest(field)
        is_known = any(record.config == best for record in field.records)
        found = {best: RETURNS if is_known else ELSEWHERE}
        found |= {simplest: SIMPLER} if simplest not in {best, None} else {}
        return {config: why for config, why in found.items() if self._cost_s(config) < math.inf}

    @property
    def _devices(self) -> list[tuple[Mapping[str, KnobValue], str]]:
        return [(move.changes, move.why) for move in self._diagnosis.devices]

    @property
    def asked(self) -> list[tuple[Mapping[str, KnobValue], str]]:
        """What needs a fresh process and was asked for: changes, and why they are tried."""
        space = self._space
        devices = self._devices if DEVICES in space.asked else []
        asked = restarts(space, space.asked)
        return [*devices, *(({knob: value}, self._fresh(knob)) for knob, value in asked)]

    def _fresh(self, knob: str) -> str:
        shapes = self._diagnosis.shapes
        if knob != "cudnn" or shapes < 2:
            return FRESH
        return f"{FRESH}; batches of {shapes} shapes were seen, each of which cuDNN times anew"

    def restarted(self, has_time: Callable[[], bool]) -> Iterator[Proposal]:
        """Yield what needs a fresh process, on top of the best config: what was asked for first."""
        space, later = self._space, restarts(self._space)
        others = [({knob: value}, self._fresh(knob)) for knob, value in later]
        moves = [*self._in_order(self.asked), *self._in_order([*self._devices, *others])]
        for changes, why in moves:
            known = {record.config for record in latest(self._study.known_records)}
            best = next((r.config for r in ranked(self._study, space)), space.start)
            live = {k: v for k, v in best.items() if k not in space.restart}
            config = space.start.replace(**{**live, **changes})
            replaces = DEVICES in changes and space.baseline[DEVICES] == REPLICAS
            if replaces and "batch_size" not in space.fixed:
                config = space.with_batch_of(best, config)
            # More ranks multiply the samples of a step, of which it may have too many
            every = space.with_smaller_batches(config)
            fits = (one for one in every if not space.conflicts(space.canonical(one)))
            config = space.allowed(next(fits, config))
            proposal = self._new(config, why, known) if has_time() else None
            records = self._study.known_records
            if proposal is not None and self._chooser.forecast(records).fits(config):
                yield proposal

    def _in_order(self, moves: Sequence[Move]) -> list[Move]:
        # Each machine that shares the search begins with another one
        if self._study.sharing.is_alone:
            return [*moves]
        arms = {self._space.start.replace(**changes): (changes, why) for changes, why in moves}
        return [arms[arm] for arm in self._study.sharing.preferred([*arms])]

    def _with_best(self, field: Field) -> Field:
        best = recommended(self._study, self._space)
        return replace(field, best=best, guilty=self._study.guilty)

    def grown(self, field: Field) -> Proposal | None:
        """Return the best config with more samples in a step, once, if these are deferred."""
        field, space = self._with_best(field), self._space
        sizes = space.domains.get("batch_size")
        is_tried = any(space.defers(record.config) for record in field.records)
        if not space.defers_growth or sizes is None or is_tried:
            return None
        own = int(space.baseline["batch_size"])
        larger = [int(value) for value in sizes.values if int(value) > own]
        grown = self._ground(field).replace(batch_size=min(larger, default=own))
        return self._new(grown, GROWN, ())

    def _ground(self, field: Field) -> Config:
        if field.best is None or field.best == self._space.baseline:
            return self._space.start
        return field.best

    def _cost_s(self, config: Config) -> float:
        if not self._allows(config):
            return math.inf
        if config.get("compile", "off") != "off":
            return COMPILING_S
        return LOADER_SEAT_S if config.get("workers") else SEAT_S

    def _new(self, config: Config, why: str, known: Container[Config]) -> Proposal | None:
        config = self._space.canonical(config)
        if config in known or config == self._space.baseline or self._space.conflicts(config):
            return None
        if any(changes.items() <= config.items() for changes in self._study.guilty):
            return None
        return Proposal(config, why)

    def _sampled(self, field: Field, known: Container[Config]) -> Proposal | None:
        space, sampler = self._space, self._sampler
        if self._is_done or sampler is None:
            return None
        if space.defers_growth:  # configs with another global batch come last
            late = {*PARTS} - space.named_parts
            kept = {knob: domain for knob, domain in space.domains.items() if knob not in late}
            space = replace(space, domains=kept)
        ground = self._ground(field)
        records = {r.config: r for r in latest(field.records)}
        is_done = True
        for _ in range(PATIENCE):
            trial, config = self._study.propose(space, ground, sampler)
            if config in known:
                self._study.tell(records[config], space, trial, is_known=True)
            elif (conflicts := space.conflicts(config)) or math.isinf(self._cost_s(config)):
                # Later there may be time and room for it, so without conflicts it is not recorded
                record = _conflicting(config, conflicts)
                self._study.tell(record, space, trial, is_known=not conflicts)
                is_done = is_done and bool(conflicts)
            else:
                return Proposal(config, "proposed by the sampler", trial=trial)
        self._is_done = is_done
        return None


def _memory_bytes(study: Study) -> float | None:
    used = next((r.measurement.memory for r in study.records if r.measurement is not None), None)
    if used is None or used.peak_bytes is None:
        return None
    capacity = study.hardware.capacity_bytes(on_device=used.is_on_device)
    return study.goal.limit_bytes(capacity)


def _conflicting(config: Config, sentences: Sequence[str]) -> TrialRecord:
    ending = Ending(Outcome.CONFLICT, " ".join(sentences))
    return TrialRecord(config, "proposed by the sampler", None, ending, None, None, 0.0)


def restarts(
    space: ResolvedSpace, knobs: Container[str] | None = None
) -> Iterator[tuple[str, KnobValue]]:
    """Yield each of some knobs that need a fresh process, by default of all, with each new value.

    The devices are left out, because threads change with them.
    """
    for knob, domain in space.domains.items():
        if knob in space.restart and knob != DEVICES and (knobs is None or knob in knobs):
            yield from ((knob, value) for value in domain.values if value != space.baseline[knob])
