"""Conclusion: build the SearchResult, which states what may be claimed after the confirmation.

All rules for claims are here and in ``claim``; reports only repeat what the result says.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace

from autotune.knobs import registry
from autotune.measurement.claim import claim
from autotune.measurement.interval import Interval
from autotune.measurement.limit import Limit, limit_of
from autotune.measurement.measurement import Measurement, warnings_of
from autotune.measurement.outcome import ENDED_BY_US, NOBODYS, Outcome
from autotune.measurement.readings import Memory
from autotune.measurement.turn import rate
from autotune.program.config import Config, KnobValue
from autotune.program.lr import LrRule
from autotune.program.sources import changed
from autotune.results.blame import judged
from autotune.results.doctor_report import data_gain, roofline_share
from autotune.results.finding import WORTH_FINDING, Finding
from autotune.results.record import TrialRecord, slowest_compilation
from autotune.results.rehearsals import trained, warning
from autotune.results.result import Contribution, LargerBatch, SearchResult
from autotune.results.shared_answer import MachineClaim, SharedAnswer
from autotune.results.training_steps import TrainingSteps, training_samples
from autotune.tuning.checking.learning_check import check_s, learns_enough, samples_ratio
from autotune.tuning.choosing.diagnosis import DEVICES, Diagnosis
from autotune.tuning.choosing.effects import KnobEffects
from autotune.tuning.choosing.proposals import restarts
from autotune.tuning.choosing.ranking import larger_batch, ranked
from autotune.tuning.choosing.worth import one_fewer
from autotune.tuning.claiming.claim import ClaimResult, match_of
from autotune.tuning.proof import Confirmation, read
from autotune.tuning.reach import reach
from autotune.tuning.session import Baseline, Session


def conclude(
    session: Session,
    baseline: Baseline,
    confirmed: ClaimResult,
    diagnosis: Diagnosis | None = None,
) -> SearchResult:
    """Return the result of a search.

    ``best`` differs from the baseline only if a confirmed interval lies wholly above 1. Throughput,
    memory and loss come from the claim's processes. Without one, the throughput is that of the
    rounds, and memory and loss are those of the baseline's first stay.
    """
    confirmation, candidate = confirmed.confirmation, confirmed.candidate
    alone = ((), ()) if confirmation is None else confirmation.alone
    is_faster = confirmation is not None and confirmation.is_faster
    base_side = alone[0] or (baseline.measurement,)
    best_side = base_side
    if is_faster and candidate is not None:
        best_side = alone[1] or tuple(filter(None, [candidate.measurement])) or base_side
    says_enough = confirmation is not None and confirmation.is_enough
    own = Interval(1.0, 1.0, 1.0)  # the program against itself
    # Judged again: a later trial may show that an earlier crash was not its config's fault.
    records = judged(session.study.known_records, baseline.space.baseline)
    best = candidate.config if candidate is not None and is_faster else baseline.space.baseline
    rates = _throughput(session, baseline, confirmation)
    learns = trained(session.study.rehearsals, best)
    applied = baseline.applied
    if learns is not None and learns.lr_rule is not LrRule.AUTO:
        applied = replace(applied, lr_rule=learns.lr_rule)
    unseen = warning(session.study.rehearsals, best) if is_faster else ""
    attempt = candidate or next(iter(ranked(session.study, baseline.space)), None)
    nearest = None if attempt is None else attempt.speedup
    if confirmation is not None and says_enough:
        nearest = confirmation.speedup
    limit = _limit(session, baseline, records)
    finding = _finding(confirmed, records, nearest, limit)
    untried = tuple(_untried(baseline, records, best))
    # What was found is confirmed first, before anything else is tried
    next_up = untried if finding is Finding.NOTHING_FOUND else ()
    return SearchResult(
        finding=finding,
        best=best,
        baseline=baseline.space.baseline,
        candidate=candidate.config if candidate is not None else None,
        speedup=confirmation.speedup if confirmation and is_faster else own,
        attempt=attempt.config if attempt is not None else None,
        candidate_speedup=None if candidate is None else nearest,
        throughput=rates,
        memory=(_peak(base_side), _peak(best_side)),
        reason=_reason(session, confirmed, records),
        untried=untried,
        worth_s=None if changed(session.files) else _worth_s(session, baseline, next_up),
        warnings=(*warnings_of([*alone[0], *alone[1]]), *([unseen] if unseen else [])),
        records=tuple(records),
        head=session.study.head,
        applied=applied,
        seconds=session.budget.spent_s,
        processes=session.rigs.started,
        run_dir=session.run.path,
        has_batchnorm=baseline.profile.model.batch_norm_layers > 0,
        unclaimed=confirmation.speedup if confirmation and not says_enough else None,
        rehearsals=session.study.rehearsals,
        canary=session.study.canary,
        larger_batch=_larger_batch(session, baseline, confirmed),
        training_steps=_training_steps(session, baseline, best),
        bottleneck="" if diagnosis is None else str(diagnosis.verdict),
        bottleneck_evidence="" if diagnosis is None else diagnosis.evidence,
        limit=limit,
        contributions=tuple(_contributions(session, baseline, candidate)),
        facts=session.study.facts,
        claim=() if confirmation is None else confirmation.processes,
        shared=SharedAnswer(
            _machines(session, baseline, confirmed),
            tuple(session.sharing.refusals()),
            tuple(session.sharing.groups()),
        ),
    )


def _machines(
    session: Session, baseline: Baseline, confirmed: ClaimResult
) -> tuple[MachineClaim, ...]:
    found, sharing = confirmed.confirmation, session.sharing
    if sharing.is_alone or found is None or confirmed.candidate is None:
        return ()
    match = match_of(session, baseline, confirmed.candidate)
    elsewhere = found.elsewhere or (match.elsewhere() if match.differs(found.processes) else {})
    return tuple(
        MachineClaim(
            host,
            len(its),
            claim([[one.ratio for one in its]], tau=match.tau, apart=found.is_apart).speedup,
            turns=() if its is found.processes else tuple(t for one in its for t in one.turns),
            is_here=its is found.processes,
            differs=not found.elsewhere and its is not found.processes,
        )
        for host, its in [(sharing.host, found.processes), *elsewhere.items()]
    )


def _limit(session: Session, baseline: Baseline, records: Sequence[TrialRecord]) -> Limit | None:
    profile, breakdown, own = baseline.profile, baseline.breakdown, baseline.measurement
    machine = session.study.head.machine(session.study.facts)
    compiled = [r.measurement for r in records if r.config.get("compile", "off") != "off"]
    is_compiled = profile.model.is_compiled or any(one is not None for one in compiled)
    return limit_of(
        breakdown,
        data_gain(profile, own, breakdown),
        roofline_share(profile, machine, breakdown, own.step_s),
        compile_was_measured=is_compiled,
    )


def _contributions(
    session: Session, baseline: Baseline, candidate: TrialRecord | None
) -> Iterator[Contribution]:
    """Yield what each change of a config gives on top of the others, by all that played.

    Nothing is told of a change of which no two configs have played, one with and one without it.
    """
    speeds, space = session.study.speeds, baseline.space
    if candidate is None or speeds is None or candidate.config not in speeds:
        return
    config = candidate.config
    held = [knob for knob in space.fixed if config[knob] != space.baseline[knob]]
    fewer = {knob: config.replace(**{knob: space.baseline[knob]}) for knob in held}
    fewer |= one_fewer(space, config, with_baseline=True)
    foreseen = KnobEffects.of(space).foresee(speeds, [config, *fewer.values()])
    played = [one for one in speeds.configs if isinstance(one, Config)]
    for knob, without in fewer.items():
        own = {knob: space.baseline[knob]}
        if not any(c[knob] == config[knob] and c.replace(**own) in speeds for c in played):
            continue
        gain = foreseen.of(config, over=without).interval
        yield Contribution(knob, space.baseline[knob], config[knob], gain)


def _throughput(
    session: Session, baseline: Baseline, confirmation: Confirmation | None
) -> tuple[Interval, Interval]:
    # Of the program as written and of the best config, by the rounds where nothing was confirmed
    if confirmation is not None:
        before, after = confirmation.rates
        return before, (after if confirmation.is_faster else before)
    own = [
        one
        for played in session.study.rounds
        for turns in played.rounds
        for config, one in zip(played.configs, turns, strict=True)
        if config == baseline.space.baseline
    ]
    if not own:
        return (baseline.measurement.throughput,) * 2
    return (rate([replace(one, cost=one.seconds, work=one.samples) for one in own]),) * 2


def _larger_batch(session: Session, baseline: Baseline, claimed: ClaimResult) -> LargerBatch | None:
    # What is known of the larger batch; None if it is not worth telling
    study, space = session.study, baseline.space
    record = larger_batch(study, space, claimed.best or space.baseline)
    if record is None or record.speedup is None:
        return None
    processes = study.claim_of(record.config)
    found = read(processes, match_of(session, baseline, record).tau)
    speedup = record.speedup
    if found is not None and found.is_enough:
        speedup = found.speedup
        if speedup.estimate <= claimed.speedup:
            return None
    checks = [r for r in study.rehearsals if r.config == record.config and r.seeds]
    return LargerBatch(
        record.config,
        speedup,
        check_s(session, baseline, record.config, samples_ratio(record, baseline)),
        processes,
        checks[-1].lr_rule if checks else LrRule.AUTO,
        is_confirmed=found is not None
        and found.is_faster
        and learns_enough(session, space, record.config),
    )


def _training_steps(session: Session, baseline: Baseline, best: Config) -> TrainingSteps | None:
    facts, profile = session.study.facts, baseline.profile
    samples = training_samples(profile.loop.length, baseline.measurement)
    if facts is None or samples is None:
        return None
    compilation = slowest_compilation(session.study.records, best)
    is_new = best != baseline.space.baseline  # else it compiles as it did
    return TrainingSteps(
        profile.loop.length,
        samples,
        facts.before_steps_s,
        compilation.seconds if compilation is not None and is_new else 0.0,
    )


def _why_nothing(records: Sequence[TrialRecord]) -> str:
    # Trials that the user, the budget, a conflict or the program's end ended do not count: they say
    # nothing about the config.
    nobody = {*ENDED_BY_US, Outcome.CONFLICT, Outcome.RAN_OUT}
    tried = [r for r in records[1:] if r.outcome not in nobody]
    if not tried or any(record.measurement is not None for record in tried):
        return ""
    ways = Counter(r.ending.reason for r in tried if r.ending is not None)
    ((way, count),) = ways.most_common(1)
    if len(tried) == 1:
        return f"the one config that was tried failed: {way}"
    return f"{count} of {len(tried)} configs failed: {way}"


def _reason(session: Session, confirmed: ClaimResult, records: Sequence[TrialRecord]) -> str:
    why, cut = confirmed.reason, session.stop.cut
    if confirmed.candidate is None:
        why = _why_nothing(records) or why
    return why if cut in why else "; ".join(filter(None, [cut, why]))


def _finding(
    confirmed: ClaimResult,
    records: Sequence[TrialRecord],
    nearest: Interval | None,
    limit: Limit | None,
) -> Finding:
    """Return how the search came out; *nearest* is the speedup of the best attempt."""
    confirmation = confirmed.confirmation
    if confirmation is not None and confirmation.is_enough:
        if confirmation.is_faster:
            return Finding.FASTER
    elif confirmed.candidate or confirmed.reason or _why_nothing(records):
        was_measured = any(record.measurement is not None for record in records[1:])
        return Finding.UNCONFIRMED if was_measured else Finding.NOT_MEASURED
    if limit is not None and limit.is_reached:
        return Finding.AT_LIMIT
    may_gain = nearest is not None and nearest.high > WORTH_FINDING
    return Finding.TOO_NOISY if may_gain else Finding.NOTHING_FOUND


def _worth_s(session: Session, baseline: Baseline, untried: Sequence[str]) -> float:
    """Return a total budget that holds what was not tried, as far as a budget can, and a claim."""
    missed = reach(session.plan, baseline.space).missed
    left = {what.partition("=")[0] for what in untried}
    needed = (one.budget_s for one in missed if one.what in left and math.isfinite(one.budget_s))
    return max([session.worth_s, *needed])


def _untried(baseline: Baseline, records: Sequence[TrialRecord], best: Config) -> Iterator[str]:
    # Named is each knob of which only the program's own value was tried, and ``knob=value`` for
    # each other value that needs a fresh process. Knobs without effect in the best config are left
    # out.
    space, knobs = baseline.space, registry()
    tried = [r.config for r in records if r.measurement or r.outcome not in NOBODYS]

    def acts(knob: str, value: KnobValue) -> bool:
        return knobs[knob].is_active(best.replace(**{knob: value}))

    told = space.restart | space.fixed.keys()
    for knob in (knob for knob in space.domains if knob not in told):
        is_tried = any(config[knob] != space.baseline[knob] for config in tried)
        if not is_tried and any(acts(knob, value) for value in space.domains[knob].values):
            yield knob
    devices = space.domains[DEVICES].values if DEVICES in space.domains else ()
    others = [(DEVICES, value) for value in devices if value != space.baseline[DEVICES]]
    for knob, value in [*restarts(space), *others]:
        is_tried = any(config[knob] == value for config in tried)
        if not is_tried and (knob == DEVICES or acts(knob, value)):
            yield f"{knob}={value}"


def _peak(side: Sequence[Measurement]) -> Memory:
    def most(name: str) -> int | None:
        values = [v for v in (getattr(m.memory, name) for m in side) if v is not None]
        return max(values, default=None)

    return Memory(**{name: most(name) for name in Memory.__dataclass_fields__})
