"""Canary: whether the exact settings train what the program trains, before anything is searched.

A setting is exact if it must not change what is trained: workers, threads, memory layout and the
like. Whether that holds depends on the program: a dataset may hold a random generator, a
block may count its calls. No list of such cases is complete. So the program runs a few short epochs
as it is written, and once more with all exact settings at once, each at the value farthest from the
program's own. If both train the same, all are cleared. If not, halves of them are taken back until
the one to blame is found; it is not searched, and the user is told what differs.

What trains otherwise by design (precision, batch), what compiles and what needs several ranks is
compared later, for the best config alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from autotune.knobs.space.space import ResolvedSpace
from autotune.measurement.learning.training_trace import NO_TIME, Agreement, Sameness
from autotune.measurement.outcome import Ending, Outcome
from autotune.program.config import Config, KnobValue
from autotune.program.domain import Domain
from autotune.program.may_change import MayChange
from autotune.program.rehearsal import Rehearsal, RehearsalPlan
from autotune.results.rehearsals import Canary
from autotune.tuning.checking.self_check import SelfCheck, is_exact
from autotune.tuning.checking.short_runs import ShortRuns
from autotune.tuning.choosing.chooser import MEMORY
from autotune.tuning.choosing.diagnosis import DEVICES
from autotune.tuning.events import Phase
from autotune.tuning.session import Baseline, Session

NEAREST = ("threads",)  # any other number adds in another order, and few threads are slow
MOST_REFUSED = 4  # settings, after which the rest is left to the comparison of the best config
# Failures that may be of the farthest value alone
OPEN = {*MEMORY, Outcome.SHARED_MEMORY, Outcome.HUNG}
STOPPED = "the search was stopped"


class Untold(Exception):
    """There was no time for a comparison, or nothing could be compared."""


def cleared(session: Session, baseline: Baseline) -> Baseline:
    """Return the baseline with a space that lacks the exact settings that train something else.

    What was found is recorded, so a resumed search does not repeat it. Without time for it, nothing
    is left out: the best config is compared before it is recommended in any case.
    """
    study = session.study
    if baseline.space.may_change is MayChange.ANY:
        return baseline  # the best config is compared, and nothing is refused for it
    if study.canary is None and not session.plan.has_time_for_canary:
        session.begin(Phase.SAME_TRAINING)
        session.events.note(f"Not compared before the search: {NO_TIME}.")
    if study.canary is None and session.plan.has_time_for_canary:
        session.begin(Phase.SAME_TRAINING)
        used = baseline.measurement.memory
        capacity = session.rigs.hardware.capacity_bytes(on_device=used.is_on_device)
        if 3 * (used.peak_bytes or 0) > capacity:  # its process would compete with these
            session.live.close()
        try:
            study.canary = found = _Check(session, baseline).run()
            if found is not None and found.training is not None:
                changes = found.config.changes_from(baseline.space.baseline)
                listed = " ".join(f"{knob}={value}" for knob, value in changes.items())
                session.events.note(f"Your training is the {found.training} with {listed}.")
        except Untold as untold:
            session.events.note(f"Not compared before the search: {untold}.")
        study.spent_s = session.budget.spent_s
        session.divide()
    found = study.canary
    if found is None:
        return baseline
    for knob, why in found.refused.items():
        session.events.warn(f"Not searched: {knob}: {why}.")
    return replace(baseline, space=baseline.space.without(found.refused))


def exact_settings(space: ResolvedSpace) -> Config:
    """Return the program's config with each exact setting at the value farthest from its own."""
    own = space.baseline
    held = {knob: value for knob, value in space.fixed.items() if _is_exact(knob)}
    far = {
        knob: _far(domain, own[knob], nearest=knob in NEAREST)
        for knob, domain in space.domains.items()
        if _is_exact(knob)
    }
    config = space.canonical(own.replace(**held, **far))
    for knob in far:
        if not space.conflicts(config):
            break
        config = space.canonical(config.replace(**{knob: own[knob]}))
    return config


def _is_exact(knob: str) -> bool:
    return is_exact(knob) and knob not in {DEVICES, "compile"}


def _far(domain: Domain, own: KnobValue, *, nearest: bool) -> KnobValue:
    values = [*domain.values]
    at = values.index(own)
    order = sorted(
        (value for value in values if value != own),
        key=lambda value: (abs(values.index(value) - at), values.index(value)),
    )
    return order[0 if nearest else -1]


@dataclass(frozen=True)
class _Compared:
    ran: Rehearsal
    training: Agreement | None = None
    fault: str = ""
    is_open: bool = False


class _Check:
    def __init__(self, session: Session, baseline: Baseline) -> None:
        self._session, self._space = session, baseline.space
        allowed_s = session.plan.most_for_rehearsal_s
        kept_s = session.budget.left_s - allowed_s
        self._runs = ShortRuns.of(session, baseline, kept_s, session.until_over)
        self._check = SelfCheck.of(session, baseline, self._runs)
        self._given = baseline.space.fixed.keys() & session.study.head.space.fixed.keys()

    def run(self) -> Canary | None:
        refused: dict[str, str] = {}
        config = exact_settings(self._space)
        try:
            while config != self._space.baseline and len(refused) < MOST_REFUSED:
                found = self._compared(config, is_whole=True)
                if not found.fault:
                    return self._found(config, found, refused)
                knob, at_fault = self._to_blame(config, found)
                if not at_fault.is_open:
                    refused[knob] = at_fault.fault
                config = self._without(config, [knob])
        except Untold:
            if not refused:
                raise
        return self._found(config, None, refused) if refused else None

    def _found(self, config: Config, found: _Compared | None, refused: Mapping[str, str]) -> Canary:
        own, domains = self._space.baseline, self._space.domains
        values = {
            knob: tuple(v for v in domains[knob].values if v != own[knob])
            if knob in domains
            else (self._space.fixed[knob],)
            for knob in refused
        }
        ran, training = (None, None) if found is None else (found.ran, found.training)
        return Canary(config, ran, training, refused, values)

    def _compared(self, config: Config, *, is_whole: bool = False) -> _Compared:
        written = self._check.written()
        if isinstance(written, Ending):
            raise Untold(written.reason.rstrip("."))
        plan = self._check.plan(config)
        plan = replace(plan, enough_s=RehearsalPlan().enough_s) if is_whole else plan
        ran = self._runs.timed(config, plan, self._check.cost_s)
        if ran.has_failed:
            return self._failed(config, plan, ran)
        if ran.seen is None or ran.seen.trace is None or not ran.has_passed:
            raise Untold(STOPPED if self._session.stop.requests else NO_TIME)
        trace, ran = ran.seen.trace, replace(ran, seen=replace(ran.seen, trace=None))
        found = self._check.exactly(config, trace)
        if found.sameness is Sameness.UNKNOWN:
            raise Untold(found.why)
        if found.sameness is not Sameness.DIFFERS:
            return _Compared(ran, found)
        return _Compared(ran, found, f"it changes the training ({found})")

    def _failed(self, config: Config, plan: RehearsalPlan, ran: Rehearsal) -> _Compared:
        again = self._runs.timed(config, plan, self._check.cost_s)
        if not again.has_failed or again.ending is None:
            raise Untold("the program fails under it in one of two runs")
        why = f"the program fails with it ({again.ending.reason.rstrip('.')})"
        return _Compared(ran, None, why, again.ending.outcome in OPEN)

    def _to_blame(self, config: Config, found: _Compared) -> tuple[str, _Compared]:
        # Settings that take others with them, as the number of workers does, come last: those
        # others would be taken back with them.
        changes = config.changes_from(self._space.baseline)
        lost = {
            knob: len(config.changes_from(self._without(config, [knob])))
            for knob in changes
            if knob not in self._given
        }
        suspects = sorted(lost, key=lambda knob: lost[knob])
        if not suspects:
            raise Untold("what was fixed trains something else")
        while len(suspects) > 1:
            half = suspects[: len(suspects) // 2]
            fewer = self._without(config, half)
            rest = None if fewer == self._space.baseline else self._compared(fewer)
            if rest is None or not rest.fault:
                suspects = half
            else:
                config, found, suspects = fewer, rest, suspects[len(half) :]
        return suspects[0], found

    def _without(self, config: Config, knobs: Sequence[str]) -> Config:
        own: Mapping[str, KnobValue] = {knob: self._space.baseline[knob] for knob in knobs}
        return self._space.canonical(config.replace(**own))
