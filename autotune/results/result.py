"""SearchResult: what a search found, and what follows from it for the user.

All figures and sentences are derived from the record, so a report can be written at any later time.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from autotune.errors import UsageError
from autotune.knobs import launch_plan_for
from autotune.machine.hardware import Hardware
from autotune.measurement.goal import Objective
from autotune.measurement.interval import Interval
from autotune.measurement.limit import Limit
from autotune.measurement.readings import Compilation, Memory
from autotune.program.applied_config import AppliedConfig
from autotune.program.config import Config, KnobValue
from autotune.program.lr import LrRule
from autotune.program.program import LaunchPlan
from autotune.results import bestfile
from autotune.results.bestfile import BestFile, GroupSection
from autotune.results.figures import Figures, Quantity, hours_of
from autotune.results.finding import Finding
from autotune.results.learning import Learning
from autotune.results.output import BEST, Output
from autotune.results.record import (
    BaselineInfo,
    ClaimProcess,
    SearchInfo,
    TrialRecord,
    slowest_compilation,
)
from autotune.results.rehearsals import Canary, RehearsalRecord, trained
from autotune.results.searched_program import DIGITS
from autotune.results.shared_answer import NOTHING_SHARED, SharedAnswer
from autotune.results.training_steps import TrainingSteps
from autotune.results.wording import as_typed, factor, printed, printed_duration, typed_duration


@dataclass(frozen=True)
class Contribution:
    """The recommended config compared with itself without one of its changes.

    Contributions do not multiply to the whole speedup where knobs help or hinder each other.

    Attributes:
        gain: Speedup over the config with the program's own value, by the rounds of the search, in
            which other configs with the change tell of it, too.
    """

    knob: str
    before: KnobValue
    after: KnobValue
    gain: Interval


@dataclass(frozen=True)
class LargerBatch:
    """The fastest config with other samples in a step, where these may not be recommended.

    Attributes:
        speedup: From its claim if that has enough processes, else as the search measured it.
        check_s: Seconds that checking what it learns would take.
        claim: The processes in which it was compared with the program as written.
        lr_rule: The rule under which the rate followed its batch best; AUTO for the usual one.
        is_confirmed: Whether its claim is above 1 and it was seen to learn as much.
    """

    config: Config
    speedup: Interval
    check_s: float
    claim: tuple[ClaimProcess, ...] = ()
    lr_rule: LrRule = LrRule.AUTO
    is_confirmed: bool = False


@dataclass(frozen=True, repr=False)
class SearchResult:
    """What a search found.

    Attributes:
        best: The config to use; the baseline unless a faster one was confirmed.
        baseline: The program's values of the knobs.
        candidate: The config that the confirmation was about; None if nothing looked faster.
        attempt: The candidate, or else the config that came nearest to being one; None if none may
            be recommended.
        speedup: Of ``best`` over ``baseline``, from fresh processes, with its 95 % interval.
        candidate_speedup: Of ``candidate``: confirmed, or live if there was no confirmation.
        throughput: Samples/s of ``baseline`` and ``best``: median and range of the
            processes of the claim.
        reason: Why there is no confirmation, and what ended the search too early; empty if there is
            one and nothing did.
        untried: What was never measured: knobs, and ``knob=value`` of those that need a fresh
            process.
        worth_s: A total budget in seconds, the time used so far included, that would hold what is
            untried and a full confirmation; None where the program was edited, so that the search
            cannot go on.
        warnings: Reasons to trust the confirmation less than others, as sentences for the user.
        records: All trials in order; the first is the baseline.
        applied: The program as written, against which configs are applied.
        has_batchnorm: Whether the model has BatchNorm layers, which make the result of a sample
            depend on the rest of its batch.
        unclaimed: Speedup of ``candidate`` in fresh processes that were too few for a claim; None
            if there were enough, or none.
        larger_batch: The fastest config of those with another number of samples per step, if it was
            clearly faster than what is recommended; None if there is none, or if such configs may
            be recommended.
        training_steps: Those of the whole training; None if their number is unknown.
        bottleneck: What limits the program as written, such as ``input-bound``; empty if unknown.
        bottleneck_evidence: What was measured to say so: sentences, without the last full stop.
        limit: What is left to gain for the program as written; None if no step was profiled.
        facts: What was learned from the program as written; None if it was not measured.
        claim: The processes in which ``candidate`` was compared with the program as written.
        canary: What the exact settings train; None if that was not compared before the search.
        shared: What it has from other machines, where several share a search.
    """

    finding: Finding
    best: Config
    baseline: Config
    candidate: Config | None
    speedup: Interval
    candidate_speedup: Interval | None
    throughput: tuple[Interval, Interval]
    memory: tuple[Memory, Memory]
    reason: str
    untried: tuple[str, ...]
    worth_s: float | None
    warnings: tuple[str, ...]
    records: tuple[TrialRecord, ...]
    head: SearchInfo
    applied: AppliedConfig
    seconds: float
    processes: int
    run_dir: Path
    has_batchnorm: bool = False
    unclaimed: Interval | None = None
    rehearsals: tuple[RehearsalRecord, ...] = ()
    larger_batch: LargerBatch | None = None
    training_steps: TrainingSteps | None = None
    bottleneck: str = ""
    bottleneck_evidence: str = ""
    limit: Limit | None = None
    contributions: tuple[Contribution, ...] = ()
    facts: BaselineInfo | None = None
    claim: tuple[ClaimProcess, ...] = ()
    canary: Canary | None = None
    attempt: Config | None = None
    shared: SharedAnswer = NOTHING_SHARED

    def __repr__(self) -> str:
        """Return the finding on one line."""
        changes = " ".join(f"{knob}={value}" for knob, value in self.changes.items())
        found = f"{self.finding}: {self.reason}" if self.reason else str(self.finding)
        if self.finding is Finding.FASTER:
            found = f"{factor(self.speedup)} {self.head.options.goal.better}"
        return f"<SearchResult: {found}{f'; {changes}' if changes else ''}>"

    @property
    def trials(self) -> list[dict[str, object]]:
        """One flat row per trial, for ``pandas.DataFrame(result.trials)``.

        Times are in seconds, memory in bytes, throughput in samples per second. Values that a trial
        has not measured are None.
        """
        return [
            {
                "trial": number,
                **record.config,
                "outcome": str(record.outcome),
                "samples_per_s": measured.throughput.estimate if measured else None,
                **_columns("speedup", record.speedup),
                **_columns("expected", record.expected),
                "step_s": measured.step_s if measured else None,
                "joules_per_sample": measured.joules_per_sample if measured else None,
                "wait_share": measured.wait_share if measured else None,
                "host_bytes": measured.memory.host_bytes if measured else None,
                "device_bytes": measured.memory.device_reserved_bytes if measured else None,
                "cost_s": record.cost_s,
                "rig": record.rig,
                "why": record.why,
                "reason": record.ending.reason if record.ending else "",
            }
            for number, record in enumerate(self.records)
            for measured in (record.measurement,)
        ]

    @property
    def hardware(self) -> Hardware:
        """The machine, with the GPUs that the program sees where that is known."""
        return self.head.machine(self.facts)

    @property
    def refused(self) -> Mapping[str, str]:
        """The knobs that were not searched, with the reasons as clauses; empty if unknown."""
        if self.facts is None:
            return {}
        space = self.head.resolve(self.hardware, self.facts.profile)
        found = {} if self.canary is None else self.canary.refused
        return space.without(found).refused

    @property
    def attempt_speedup(self) -> Interval | None:
        """Of ``attempt``: confirmed, or as the rounds of the search measured it."""
        if self.attempt == self.candidate:
            return self.candidate_speedup
        played = (r.speedup for r in self.records if r.config == self.attempt)
        return next(filter(None, played), None)

    @property
    def changes(self) -> Mapping[str, KnobValue]:
        """The knobs in which ``best`` differs from the baseline, with the values of ``best``."""
        return self.best.changes_from(self.baseline)

    @property
    def learning(self) -> Learning:
        """What ``best`` changes about what the program learns."""
        return Learning(self.best, self.baseline, self.applied, self.has_batchnorm)

    @property
    def has_ranks(self) -> bool:
        """Whether ``best`` trains in ranks that torchrun starts.

        This is so if ``best`` contains such a strategy, or if the user's command line starts ranks.
        """
        plan = LaunchPlan((), ".", ranks=self.head.program.ranks)
        return launch_plan_for(replace(self.applied, config=self.best), plan).ranks is not None

    @property
    def training_note(self) -> str:
        """How the training under ``best`` compares with the program as written.

        Of the self-check. Empty if ``best`` changes nothing.
        """
        if not self.changes:
            return ""
        if (record := trained(self.rehearsals, self.best)) is not None:
            return record.training_note
        left = ", ".join(self.uncompared)
        told = None if self.canary is None else self.canary.training
        if not left:
            return f"Training: {told}."
        same = "" if told is None or len(self.uncompared) == len(self.changes) else f"{told}, but "
        budget = "" if self.worth_s is None else f"; --budget {typed_duration(self.worth_s)} has it"
        return f"Training: {same}{left} not compared: there was no time{budget}."

    @property
    def uncompared(self) -> tuple[str, ...]:
        """The settings of ``best`` of which nobody knows whether they train the same."""
        record = trained(self.rehearsals, self.best)
        is_known = self.canary is not None and self.canary.training is not None
        known = self.canary.config.items() if self.canary is not None and is_known else ()
        return tuple(
            knob
            for knob, value in self.changes.items()
            if (knob, value) not in known and (record is None or record.leaves_open(knob))
        )

    @property
    def figures(self) -> Figures:
        """What is printed about speed, computed from the claim as it is printed."""
        claim, goal, steps = printed(self.speedup), self.head.options.goal, self.training_steps
        training = None
        if goal.objective is Objective.THROUGHPUT and goal.hours is not None:
            training = hours_of(goal.hours, claim)
        elif goal.objective is Objective.THROUGHPUT and steps is not None:
            training = steps.time(self.throughput[0].estimate, claim)
        return Figures(claim, self._quantity, training, printed_duration(self.seconds))

    @property
    def _quantity(self) -> Quantity | None:
        """What the claim is about, of the program as written; None where it was not read."""
        samples_per_s, memory = self.throughput[0].estimate, self.memory[0].peak_bytes
        first = self.records[0].measurement if self.records else None
        match self.head.options.goal.objective:
            case Objective.THROUGHPUT if not self._counts_steps:
                return Quantity("training speed", samples_per_s, "samples/s")
            case Objective.THROUGHPUT | Objective.STEP_TIME if first is not None:
                per_step = first.samples_per_step
                return Quantity("training speed", samples_per_s / per_step, "steps/s")
            case Objective.MEMORY if memory is not None:
                return Quantity("peak memory", memory / 2**30, "GiB", shrinks=True)
            case Objective.ENERGY if first is not None and first.joules_per_sample is not None:
                return Quantity("energy", first.joules_per_sample, "J/sample", shrinks=True)
        return None

    @property
    def _counts_steps(self) -> bool:
        """Whether the program makes a fixed number of steps, and ``best`` makes larger ones."""
        return bool(self.applied.traits.bounded_by_steps) and self.learning.batch_growth != 1.0

    @property
    def compilation(self) -> Compilation | None:
        """What compiling costs a run of ``best`` with an empty cache; None if it does not compile.

        Of the ``slowest_compilation`` that was seen.
        """
        return slowest_compilation(self.records, self.best)

    @property
    def break_even_steps(self) -> int | None:
        """Steps of ``best`` after which its speed has made up for the time spent compiling.

        None if it does not compile or is not faster than the baseline.
        """
        compilation, claim = self.compilation, self.figures.claim.estimate
        if compilation is None or claim <= 1.0:
            return None
        gained_s = (1 - 1 / claim) / self.throughput[0].estimate  # per sample
        samples_per_step = fmean(
            record.measurement.samples_per_step
            for record in self.records
            if record.config == self.best and record.measurement is not None
        )
        return math.ceil(compilation.seconds / gained_s / samples_per_step)

    @property
    def steps_note(self) -> str:
        """For a program with a fixed number of steps: what larger steps do to the whole run.

        Empty for other programs, and if no config changed the number of samples in a step.
        """
        bound = self.applied.traits.bounded_by_steps
        if not bound:
            return ""
        seen = [(r, r.measurement) for r in self.records if r.measurement is not None]
        own = next((m.samples_per_step for _, m in seen), 1.0)
        grown = (
            (self.applied.extra_work(r.config, m.samples_per_step / own), 1 / r.speedup.estimate)
            for r, m in seen
            if r.speedup is not None
        )
        growth, longer = max(grown, default=(1.0, 1.0))
        if growth == 1.0:
            return ""
        return (
            f"The program makes a fixed number of steps ({bound}), so its "
            f"configs are compared by steps/s: with {growth:g} times the samples a step takes "
            f"{longer:.2f}x as long, and so does the whole run."
        )

    def save(self, path: str | os.PathLike[str], *, force: bool = False) -> Path:
        """Write best.yaml to *path*, and return the file that holds the result.

        Missing folders are created. What an older best.yaml of the program changes is kept as
        ``NAME.1``.

        Args:
            force: Replace the file, whatever it is.

        Raises:
            UsageError: The search found nothing faster, the file cannot be written, or autotune
                did not write what is there for the program.
        """
        if self._file_name != BEST.name:
            raise UsageError(
                f"There is nothing to save: {self.finding}. {self.own_file} holds what was found."
            )
        output = Output.typed(path, force=force)
        output.check(program=self.head.program)
        if said := self.put_into(output):
            logging.getLogger("autotune").warning(said)
        return self.found_in(output)

    def put_into(self, output: Output) -> str:
        """Write best.yaml where that may be, and return what to say of it; see ``Output.take``.

        A search that has confirmed nothing faster writes none.
        """
        if self._file_name != BEST.name:
            return ""
        return output.take(self.best_file(), self.head.program, self.own_file)

    def found_in(self, output: Output | None) -> Path:
        """Return the file in which people find the result: that best.yaml, or ``own_file``."""
        if output is None or self._file_name != BEST.name:
            return self.own_file
        return output.path if output.holds(self.best_file()) else self.own_file

    @property
    def own_file(self) -> Path:
        """The file in the search's folder that holds what it found, as people would type it.

        best.yaml if a config was confirmed to be faster, were it one with larger steps;
        candidate.yaml if one only looks faster; else result.json.
        """
        return as_typed(self.run_dir / self._file_name)

    @property
    def _file_name(self) -> str:
        if self.finding is Finding.FASTER:
            return BEST.name
        if self.finding is Finding.UNCONFIRMED and self.candidate is not None:
            return bestfile.CANDIDATE
        return bestfile.RESULT if self._larger_section() is None else BEST.name

    def best_file(self, config: Config | None = None) -> BestFile:
        """Return the content of best.yaml, or of candidate.yaml where nothing is confirmed.

        Its config is empty where nothing looked faster but larger steps. Figures are rounded.

        Args:
            config: Another one that the file is to hold.
        """
        speedup = self.speedup
        if self._file_name == bestfile.CANDIDATE and self.candidate is not None:
            config, speedup = config or self.candidate, self.candidate_speedup or self.speedup
        # As NVML names the GPUs, as it will for another command; else what the program saw
        machine = self.head.hardware if self.head.hardware.gpus else self.hardware
        return BestFile.of(
            replace(self.applied, config=config or self.best),
            self.head.program,
            confirmed=self._file_name != bestfile.CANDIDATE,
            larger_batch=self._larger_section(),
            speedup=speedup,
            machines=tuple(sorted(one.host for one in self.shared.pooled)),
            groups={one.group: GroupSection.model_validate(one) for one in self.shared.groups},
            made_on=bestfile.MadeOn.on(machine),
            search=bestfile.SearchSection(
                date=self.head.created,
                folder=f"{self.run_dir.parent.name}/{self.run_dir.name}",
                digest=self.head.program.fingerprint[:DIGITS],
                objective=str(self.head.options.goal.objective),
            ),
        )

    def _larger_section(self) -> bestfile.LargerBatch | None:
        larger = self.larger_batch
        if larger is None or not larger.is_confirmed:
            return None
        return bestfile.LargerBatch(
            config=larger.config.changes_from(self.baseline),
            speedup=larger.speedup,
            lr_rule=larger.lr_rule,
        )


def _columns(name: str, interval: Interval | None) -> dict[str, float | None]:
    low, high = (None, None) if interval is None else (interval.low, interval.high)
    estimate = None if interval is None else interval.estimate
    return {name: estimate, f"{name}_low": low, f"{name}_high": high}
