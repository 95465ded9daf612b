"""SearchResult: what a search found, as a pure function of its record."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from statistics import fmean

from autotune import bestfile
from autotune.baseline import Baseline
from autotune.bestfile import BestFile
from autotune.blame import judged
from autotune.config import Config, KnobValue
from autotune.confirm import Confirmation, Verdict
from autotune.flags import KEYWORD
from autotune.knobs import launched, registry
from autotune.lr import LrRule, batch_growth, global_batch, optimizer_factor, rule_for
from autotune.measurement import Compilation, Interval, Measurement, Memory, doubts_of
from autotune.outcome import ENDED_BY_US, Outcome
from autotune.parallel import parallel_notes
from autotune.program import LaunchPlan
from autotune.proposals import DEVICES, restarts
from autotune.record import Head, TrialRecord, gradients_sum
from autotune.rehearsal import RehearsalRecord, blames, doubt, note
from autotune.session import Session
from autotune.setting import Setting
from autotune.space import ResolvedSpace
from autotune.stats import spread

ADVISE_WARMUP_ABOVE = 4


class Finding(StrEnum):
    """How a search came out."""

    FASTER = "faster"
    NO_GAIN = "no significant gain"
    UNCONFIRMED = "not confirmed"
    NOTHING = "nothing could be measured"


@dataclass(frozen=True)
class SearchResult:
    """What a search found.

    Attributes:
        finding: Faster, no significant gain (the program's own config stays best), stopped before
            a claim was confirmed or anything but the baseline measured, or no config but the
            baseline could be measured.
        best: The config to use; the baseline unless a faster one was confirmed.
        baseline: The program's own config.
        candidate: The config that the confirmation was about, None when nothing looked faster.
        speedup: Of ``best`` over ``baseline``, from fresh processes, with its 95 % interval.
        candidate_speedup: Of ``candidate``: confirmed, or live when there was no confirmation.
        one_process: The same in the only fresh process that there was, which confirms nothing; None
            with several or none.
        throughput: Samples/s of ``baseline`` and ``best``: median and range of the windows.
        memory: Peaks of ``baseline`` and ``best``.
        losses: Last loss of the baseline's and the best's windows.
        reason: Why there is no confirmation, empty when there is one.
        untried: Values of restart knobs that there was no time for.
        doubts: Why the confirmation is less sure than others, as sentences for the user.
        rehearsals: What was found out about configs beyond their training loops.
        has_batchnorm: The model has layers whose result depends on a batch as a whole.
    """

    finding: Finding
    best: Config
    baseline: Config
    candidate: Config | None
    speedup: Interval
    candidate_speedup: Interval | None
    throughput: tuple[Interval, Interval]
    memory: tuple[Memory, Memory]
    losses: tuple[float | None, float | None]
    reason: str
    untried: tuple[str, ...]
    doubts: tuple[str, ...]
    records: tuple[TrialRecord, ...]
    head: Head
    setting: Setting
    seconds: float
    processes: int
    run_dir: Path
    has_batchnorm: bool = False
    one_process: Interval | None = None
    rehearsals: tuple[RehearsalRecord, ...] = ()

    @property
    def trials(self) -> list[dict[str, object]]:
        """One flat row per trial, ready for ``pandas.DataFrame(result.trials)``."""
        return [dict(_row(number, record)) for number, record in enumerate(self.records)]

    @property
    def has_measured_nothing(self) -> bool:
        """The search wanted more than the baseline, and was kept from measuring it."""
        is_open = self.finding is Finding.UNCONFIRMED and self.candidate is None
        was_measured = any(record.measurement is not None for record in self.records[1:])
        return self.finding is Finding.NOTHING or (is_open and not was_measured)

    @property
    def changes(self) -> Mapping[str, KnobValue]:
        """The knobs in which ``best`` differs from the baseline."""
        return self.best.changes_from(self.baseline)

    @property
    def lr_factor(self) -> float:
        """Factor on the learning rate of the first optimizer that ``best`` implies."""
        return next((factor for _, _, factor in self._lr_factors), 1.0)

    @property
    def _lr_factors(self) -> list[tuple[str, LrRule, float]]:
        """The program's optimizers, the rule of each, and the factor on its rate."""
        if "batch_size" in self.setting.own_knobs:
            return []
        chosen, sums = self.setting.lr_rule, bool(self.setting.sums)
        return [
            (
                facts.name,
                rule_for(facts.families) if chosen is LrRule.AUTO else chosen,
                optimizer_factor(chosen, facts.families, self.batch_growth, sums=sums),
            )
            for facts in self.setting.optimizers
        ]

    @property
    def global_batches(self) -> tuple[int | None, int | None]:
        """Samples that make one optimizer step, in ``baseline`` and in ``best``."""
        return global_batch(self.baseline), global_batch(self.best)

    @property
    def has_ranks(self) -> bool:
        """``best`` trains in ranks that a launcher starts."""
        plan = LaunchPlan((), ".", ranks=self.head.program.ranks)
        return launched(replace(self.setting, config=self.best), plan).ranks is not None

    @property
    def parallel_notes(self) -> tuple[str, ...]:
        """Where the time of several ranks goes, as sentences; empty where none were measured."""
        return parallel_notes(self.records, self.best)

    @property
    def rehearsal_notes(self) -> tuple[str, ...]:
        """What ``best`` came through after its training loop, and what others did not."""
        own = note(self.rehearsals, self.best) if self.changes else ""
        return (*([own] if own else []), *blames(self.rehearsals))

    @property
    def batch_growth(self) -> float:
        """How many times the samples of the program's own step a step of ``best`` has."""
        counts_ranks = not self.setting.distributes_itself
        return batch_growth(self.baseline, self.best, counts_ranks=counts_ranks)

    @property
    def compilation(self) -> Compilation | None:
        """What compiling costs a run of ``best`` when nothing is cached; None without compiling."""
        if self.best.get("compile", "off") == "off":
            return None
        seen = [
            record.measurement.compilation
            for record in self.records
            if record.measurement is not None
            and record.config.get("compile") == self.best["compile"]
        ]
        return max(filter(None, seen), key=lambda c: c.seconds, default=None)

    @property
    def break_even_steps(self) -> int | None:
        """Steps of ``best`` after which it has caught up with the baseline, compiling included."""
        compilation, (before, after) = self.compilation, self.throughput
        if compilation is None or after.estimate <= before.estimate:
            return None
        gained_s = 1 / before.estimate - 1 / after.estimate  # per sample
        return math.ceil(compilation.seconds / gained_s / self._samples_per_step)

    @property
    def _samples_per_step(self) -> float:
        return fmean(
            record.measurement.samples_per_step
            for record in self.records
            if record.config == self.best and record.measurement is not None
        )

    @property
    def steps_note(self) -> str:
        """What other samples in a step mean where steps are fixed; empty where none were tried."""
        if not self.setting.bounded_by_steps:
            return ""
        seen = [(r, r.measurement) for r in self.records if r.measurement is not None]
        own = next((m.samples_per_step for _, m in seen), 1.0)
        grown = (
            (self.setting.extra_work(r.config, m.samples_per_step / own), 1 / r.speedup.estimate)
            for r, m in seen
            if r.speedup is not None
        )
        growth, longer = max(grown, default=(1.0, 1.0))
        if growth == 1.0:
            return ""
        return (
            f"The program makes a fixed number of steps ({self.setting.bounded_by_steps}), so its "
            f"configs are compared by steps/s: with {growth:g} times the samples a step takes "
            f"{longer:.2f}x as long, and so does the whole run."
        )

    @property
    def learning_note(self) -> str:
        """What the best config means for learning, as sentences for the user."""
        return self._batch_note + self._own_flags_note

    @property
    def _batch_note(self) -> str:
        before, after = self.global_batches
        growth = self.batch_growth
        if growth == 1.0:
            note = "The learning rate is the program's own, and so are the samples of each step."
            if before is None and self._own_flags:
                return "The learning rate is the program's own."
            return note + self._micro_batch_note
        if before is None:
            change = f"A step has {growth:g} times the samples"
        else:
            change = f"The batch goes from {before} to {after}"
        if "batch_size" in self.setting.own_knobs:
            return f"{change}; the program sets its own learning rate."
        note = f"{change} and {self._rates_note}: check the final accuracy once."
        if growth > ADVISE_WARMUP_ABOVE:
            note += " A few epochs of learning-rate warm-up are advisable at this factor."
        return f"{note}{self._micro_batch_note} --keep-global-batch searches without this change."

    @property
    def _rates_note(self) -> str:
        """What becomes of the learning rates, as the part of a sentence."""
        scaled = {
            f"{name} is multiplied by {factor:.3g} ({rule} rule)": None
            for name, rule, factor in self._lr_factors
            if factor != 1.0
        }
        if not scaled:
            return "the learning rate stays" + (
                ", for the loss sums over its samples" if self.setting.sums else ""
            )
        return "during its steps the learning rate of " + " and that of ".join(scaled)

    @property
    def _own_flags(self) -> list[str]:
        return [knob for knob in self.changes if knob.startswith(("-", KEYWORD))]

    @property
    def _own_flags_note(self) -> str:
        if not self._own_flags:
            return ""
        names = ", ".join(self._own_flags)
        return f" What {names} means for learning is yours to judge: it is your program's own."

    @property
    def _micro_batch_note(self) -> str:
        note = ""
        if (steps := self.changes.get("accumulation_steps")) is not None:
            note += (
                f" Gradients of {steps} batches make one step; a loss must average over its "
                "samples, and BatchNorm sees each batch alone."
            )
        ranks = self.changes.get("world_size", 1)
        if self.has_batchnorm and ranks != 1 and not self.best.get("sync_batchnorm"):
            note += " BatchNorm sees the samples of each rank alone."
        return note

    def save(self, path: str | Path) -> Path:
        """Write best.yaml to *path* and return it."""
        path = Path(path)
        self.best_file().write(path)
        return path

    def best_file(self) -> BestFile:
        """Return the content of best.yaml."""
        hardware = self.head.hardware
        compilation = self.compilation
        sides = ("baseline", "best")
        return BestFile(
            program=bestfile.ProgramSection(
                command=str(self.head.program),
                fingerprint=self.head.program.fingerprint,
                device=self.setting.device,
                loader=self.setting.loader,
                own_knobs=self.setting.own_knobs,
                own_autocast=self.setting.own_autocast,
                own_scaler=self.setting.own_scaler,
                trainer=self.setting.trainer,
                flags=dict(self.setting.flags),
                distributes_itself=self.setting.distributes_itself,
                optimizers=self.setting.optimizers,
                ranks=self.head.program.ranks,
            ),
            config=dict(self.best),
            baseline=dict(self.baseline),
            speedup=bestfile.SpeedupSection(
                estimate=round(self.speedup.estimate, 4),
                low=round(self.speedup.low, 4),
                high=round(self.speedup.high, 4),
            ),
            throughput=bestfile.ThroughputSection(
                baseline=round(self.throughput[0].estimate, 2),
                best=round(self.throughput[1].estimate, 2),
            ),
            memory=bestfile.MemorySection(baseline=self.memory[0], best=self.memory[1]),
            learning=bestfile.LearningSection(
                lr_rule=self.setting.lr_rule,
                sums=self.setting.sums,
                lr_factor=round(self.lr_factor, 6),
                batch_size=dict(zip(sides, self.global_batches, strict=True)),
                loss=dict(zip(sides, self.losses, strict=True)),
                note=self.learning_note,
            ),
            hardware=hardware,
            versions=dict(hardware.versions),
            search=bestfile.SearchSection(
                trials=len(self.records),
                seconds=round(self.seconds, 1),
                compile_seconds=round(compilation.seconds, 1) if compilation else None,
                break_even_steps=self.break_even_steps,
                verdict=self.finding,
                confirmed=self.finding is Finding.FASTER,
                processes=self.processes,
                date=self.head.created,
            ),
        )


def conclude(session: Session, baseline: Baseline, verdict: Verdict) -> SearchResult:
    """Return the result; only a confirmed interval that lies above 1 changes the config."""
    confirmation, candidate = verdict.confirmation, verdict.candidate
    base_side = confirmation.baseline if confirmation else (baseline.measurement,)
    is_faster = confirmation is not None and confirmation.is_faster
    best_side = confirmation.winner if confirmation and is_faster else base_side
    says_enough = confirmation is not None and confirmation.says_enough
    own = Interval(1.0, 1.0, 1.0)  # the program against itself
    records = judged(session.study.records, baseline.space.baseline)
    best = candidate.config if candidate is not None and is_faster else baseline.space.baseline
    return SearchResult(
        finding=_finding(verdict, records),
        best=best,
        baseline=baseline.space.baseline,
        candidate=candidate.config if candidate is not None else None,
        speedup=confirmation.speedup if confirmation and is_faster else own,
        candidate_speedup=(
            confirmation.speedup
            if confirmation and says_enough
            else candidate.speedup
            if candidate
            else None
        ),
        throughput=(
            spread([m.throughput for m in base_side]),
            spread([m.throughput for m in best_side]),
        ),
        memory=(_peak(base_side), _peak(best_side)),
        losses=(_last_loss(base_side), _last_loss(best_side)),
        reason=(_why_nothing(records) if candidate is None else "") or verdict.reason,
        untried=tuple(_untried(baseline.space, records, best)),
        doubts=_doubts(session, confirmation, best if is_faster else None),
        records=tuple(records),
        head=session.study.head,
        setting=replace(baseline.setting, sums=gradients_sum(records)),
        seconds=session.budget.spent_s,
        processes=session.rigs.started,
        run_dir=session.run.path,
        has_batchnorm=baseline.profile.batch_norm_layers > 0,
        one_process=confirmation.speedup if confirmation and not says_enough else None,
        rehearsals=tuple(session.study.rehearsals),
    )


def _doubts(
    session: Session, confirmation: Confirmation | None, recommended: Config | None
) -> tuple[str, ...]:
    found = doubts_of((*confirmation.baseline, *confirmation.winner)) if confirmation else ()
    unseen = doubt(session.study.rehearsals, recommended) if recommended is not None else ""
    return (*found, unseen) if unseen else tuple(found)


def _why_nothing(records: Sequence[TrialRecord]) -> str:
    """Return how most configs ended, where none but the baseline was measured; else nothing."""
    tried = [r for r in records[1:] if r.outcome not in {*ENDED_BY_US, Outcome.CONFLICT}]
    if not tried or any(record.measurement is not None for record in tried):
        return ""
    ways = Counter(f"{r.outcome}: {r.ending.reason}" for r in tried if r.ending is not None)
    ((way, count),) = ways.most_common(1)
    if len(tried) == 1:
        return f"the one config that was tried ended with {way}"
    return f"{count} of {len(tried)} configs ended with {way}"


def _finding(verdict: Verdict, records: Sequence[TrialRecord]) -> Finding:
    if verdict.candidate is None and _why_nothing(records):
        return Finding.NOTHING
    if verdict.confirmation is None or not verdict.confirmation.says_enough:
        has_reason = bool(verdict.candidate or verdict.reason)
        return Finding.UNCONFIRMED if has_reason else Finding.NO_GAIN
    return Finding.FASTER if verdict.confirmation.is_faster else Finding.NO_GAIN


def _untried(space: ResolvedSpace, records: Sequence[TrialRecord], best: Config) -> Iterator[str]:
    """Yield the values of restart knobs that would act beside the best config, and were not."""
    tried = [r.config for r in records if r.measurement is not None]
    wanted = [*restarts(space, space.restart), *_device_values(space)]
    for knob, value in wanted:
        is_idle = not registry()[knob].is_active(best.replace(**{knob: value}))
        is_tried = any(config[knob] == value for config in tried)
        if not is_tried and (knob in DEVICES or not is_idle):
            yield f"{knob}={value}"


def _device_values(space: ResolvedSpace) -> Iterator[tuple[str, KnobValue]]:
    for knob in sorted(DEVICES & space.domains.keys()):
        for value in space.domains[knob].values:
            if value != space.baseline[knob]:
                yield knob, value


def _peak(side: Sequence[Measurement]) -> Memory:
    def most(name: str) -> int | None:
        values = [v for v in (getattr(m.memory, name) for m in side) if v is not None]
        return max(values, default=None)

    return Memory(**{name: most(name) for name in Memory.__dataclass_fields__})


def _last_loss(side: Sequence[Measurement]) -> float | None:
    last = [loss for m in side for loss in m.losses[-1:] if loss is not None]
    return round(fmean(last), 6) if last else None


def _row(number: int, record: TrialRecord) -> Iterator[tuple[str, object]]:
    measurement, speedup = record.measurement, record.speedup
    yield "trial", number
    yield from record.config.items()
    yield "outcome", str(record.outcome)
    yield "samples_per_s", measurement.throughput.estimate if measurement else None
    yield "speedup", speedup.estimate if speedup else None
    yield "speedup_low", speedup.low if speedup else None
    yield "speedup_high", speedup.high if speedup else None
    yield "wait_share", measurement.wait_share if measurement else None
    yield "host_bytes", measurement.memory.host_bytes if measurement else None
    yield "device_bytes", measurement.memory.device_reserved_bytes if measurement else None
    yield "cost_s", record.cost_s
    yield "rig", record.rig
    yield "why", record.why
    yield "reason", record.ending.reason if record.ending else ""
