"""A search's result as data: ``result.json`` in its folder, ``--json``, and what the report embeds.

The models below are the format; ``schema/result-2.json`` is their JSON Schema, for other programs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Generic, Literal, TypeVar

from pydantic import Field

from autotune.machine.hardware import Hardware
from autotune.measurement.interval import Interval
from autotune.measurement.learning.training_trace import NO_TIME
from autotune.measurement.limit import Limit
from autotune.measurement.outcome import Outcome
from autotune.measurement.readings import Memory
from autotune.program.config import Config, KnobValue
from autotune.program.lr import LrRule
from autotune.program.sharing_options import SharingOptions
from autotune.results import bestfile
from autotune.results.bestfile import Rounded
from autotune.results.data.part import Part
from autotune.results.finding import Finding
from autotune.results.result import SearchResult
from autotune.results.searched_program import imports_of

T = TypeVar("T")


class Sides(Part, Generic[T]):
    """A figure of the program as written and of the best config."""

    as_written: T
    best: T


class ProgramPart(Part):
    """What was searched.

    Attributes:
        fingerprint: SHA-256 of the program's source.
        imports: The files of the user's that it imported, from its working directory, with the
            first digits of their SHA-256.
        ranks: Number of ranks that the command line starts; null for one process.
        device: Where it trains: cpu or cuda.
    """

    command: str
    fingerprint: str
    imports: dict[str, str]
    ranks: int | None
    device: str


class BestPart(Part):
    """The config to use.

    Attributes:
        config: The settings that change, with their values; empty if nothing is recommended.
        as_written: The program's own values of all settings that were searched.
        objective: What the speedup is about: throughput, step-time, memory or energy.
        speedup: Over the program as written, with its 95 % interval; 1 if no gain was confirmed.
        throughput: Samples per second.
        compile_seconds: What compiling adds to a run of the config; null if it does not compile.
        break_even_steps: Steps after which a run that compiles has caught up; null if it never
            does.
    """

    config: dict[str, KnobValue]
    as_written: dict[str, KnobValue]
    objective: str
    speedup: Rounded
    throughput: Sides[float]
    memory: Sides[Memory]
    compile_seconds: float | None
    break_even_steps: int | None


class OtherPart(Part):
    """A config that is not recommended, and why.

    Attributes:
        live_speedup: As the search measured it, not confirmed; null if it does not count.
        check_seconds: What it takes to check what it learns; null if that does not matter.
        blame: Those of the changes that are to blame: one if it was found, else all.
    """

    changes: dict[str, KnobValue]
    live_speedup: Rounded | None = None
    check_seconds: float | None = None
    blame: dict[str, KnobValue] = Field(default_factory=dict)
    why: str = ""


class LearningPart(Part):
    """What the best config changes about learning.

    Attributes:
        lr_factor: Factor on the learning rate of the first optimizer.
        batch_size: Samples in one optimizer step; null if unknown.
        larger_batch: A faster config with larger steps; null if there is none.
        training: How the training compares with that of the program as written, for the user; empty
            if nothing changes.
        refused: Configs that were seen to train something else, or to fail.
    """

    lr_rule: LrRule
    lr_factor: float
    batch_size: Sides[int | None]
    note: str
    larger_batch: OtherPart | None
    training: str
    refused: tuple[OtherPart, ...]


class TrainingStepsPart(Part):
    """How long the steps of the whole training take, estimated, with starting and compiling.

    Attributes:
        steps: How many steps it makes, where it counts these instead of epochs.
        seconds: That of ``best`` is null if nothing is recommended.
    """

    epochs: float | None
    steps: float | None
    seconds: Sides[float | None]
    note: str


class ClaimPart(Part):
    """What one fresh process showed of the best config or of the candidate.

    Attributes:
        of_search: Whether the processes are those of the search itself.
    """

    speedup: float
    error_pct: float
    rounds: int
    starts_as_written: bool
    of_search: bool


class MachinePart(Part):
    """What the processes of one machine say of the best config or of the candidate.

    Attributes:
        speedup: By the processes of this machine alone.
        is_here: Whether it is the machine of this result.
        differs: Whether machines surely differ, so that the claim of this result does not rest on
            it.
    """

    host: str
    processes: int
    speedup: Rounded
    is_here: bool
    differs: bool


class RefusalPart(Part):
    """What machines of this kind were to claim together, and one of them refused.

    Attributes:
        changes: What the config changes of the program as written.
        announced_by: The machine whose search found it.
        host: The machine that refused it.
    """

    changes: dict[str, KnobValue]
    announced_by: str
    host: str
    why: str


class GroupPart(bestfile.GroupSection):
    """What machines of another kind found in the same study; best.yaml holds all but these two.

    Attributes:
        group: Fingerprint of such machines.
    """

    group: str
    finding: Finding


class TrialPart(Part):
    """One config that was tried, the first of which is the program as written.

    Times are in seconds, memory is in bytes; what was not measured is null.
    """

    trial: int
    changes: str
    outcome: Outcome
    samples_per_s: float | None
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    expected: float | None
    expected_low: float | None
    expected_high: float | None
    step_s: float | None
    joules_per_sample: float | None
    wait_share: float | None
    host_bytes: int | None
    device_bytes: int | None
    cost_s: float | None
    rig: int | None
    why: str
    reason: str


class ResultData(Part):
    """What a search found.

    Attributes:
        number: Of this format.
        run: The search's folder.
        config: The best.yaml or the candidate.yaml that holds the config; null if there is none.
        date: When the search began.
        seconds: Wall time of the search, all sessions included.
        first_step_s: Seconds until the program made its first step.
        candidate: What the confirmation was about, or would be; null if nothing looked faster.
        limit: What is left to gain without changing the model; null if no step was profiled.
        processes: How many processes the search has started.
        study: Of several machines, of which the search was a member; null without one.
        machines: Those of this kind that claimed together; empty for a search of one machine.
        refusals: What machines of this kind refused to claim, in the order of the study.
        groups: The answers of machines of other kinds.
        untried: What was not tried, with the reasons as clauses.
    """

    number: Literal[2] = Field(default=2, alias="schema")
    finding: Finding
    reason: str
    run: str
    config: str | None
    date: str
    seconds: float
    first_step_s: float | None
    program: ProgramPart
    best: BestPart
    candidate: OtherPart | None
    learning: LearningPart
    training_steps: TrainingStepsPart | None
    limit: Limit | None
    machine: Hardware
    processes: int
    claim: tuple[ClaimPart, ...]
    study: SharingOptions | None
    machines: tuple[MachinePart, ...]
    refusals: tuple[RefusalPart, ...]
    groups: tuple[GroupPart, ...]
    untried: dict[str, str]
    trials: tuple[TrialPart, ...]


def as_data(result: SearchResult, file: Path | None = None) -> dict[str, Any]:
    """Return a result as data that JSON can hold.

    Args:
        file: Where people find the config; by default in the search's folder.
    """
    found = file or result.own_file
    first_step_s = None if result.facts is None else result.facts.first_step_s
    data = ResultData(
        finding=result.finding,
        reason=result.reason,
        run=str(result.run_dir),
        config=None if found.name == bestfile.RESULT else str(found),
        date=result.head.created,
        seconds=round(result.seconds, 1),
        first_step_s=None if first_step_s is None else round(first_step_s, 2),
        program=_program(result),
        best=_best(result),
        candidate=None
        if result.candidate is None
        else _other(result, result.candidate, result.candidate_speedup),
        learning=_learning(result),
        training_steps=_training_steps(result),
        limit=result.limit,
        machine=result.hardware,
        processes=result.processes,
        claim=tuple(
            ClaimPart(
                speedup=round(one.ratio.interval.estimate, 4),
                error_pct=round(100 * one.ratio.error, 2),
                rounds=one.rounds,
                starts_as_written=one.starts_as_written,
                of_search=one.is_of_search,
            )
            for one in result.claim
        ),
        study=result.head.options.sharing,
        machines=tuple(map(MachinePart.model_validate, result.shared.machines)),
        refusals=tuple(
            RefusalPart(
                changes=dict(one.config.changes_from(result.baseline)),
                announced_by=one.announced_by,
                host=one.host,
                why=one.why,
            )
            for one in result.shared.refusals
        ),
        groups=tuple(map(GroupPart.model_validate, result.shared.groups)),
        untried={**result.refused, **dict.fromkeys(result.untried, NO_TIME)},
        trials=_trials(result),
    )
    return data.as_json()


def as_text(result: SearchResult, file: Path | None = None) -> str:
    """Return the same as the text of a JSON file."""
    return json.dumps(as_data(result, file), indent=1) + "\n"


def _program(result: SearchResult) -> ProgramPart:
    program = result.head.program
    files = {} if result.facts is None else result.facts.files
    return ProgramPart(
        command=str(program),
        fingerprint=program.fingerprint,
        imports=imports_of(program, files),
        ranks=program.ranks,
        device=result.applied.traits.device,
    )


def _best(result: SearchResult) -> BestPart:
    compilation, (before, after) = result.compilation, result.throughput
    return BestPart(
        config=dict(result.changes),
        as_written=dict(result.baseline),
        objective=str(result.head.options.goal.objective),
        speedup=result.speedup,
        throughput=Sides(
            as_written=round(before.estimate, 2),
            best=round(after.estimate, 2),
        ),
        memory=Sides(as_written=result.memory[0], best=result.memory[1]),
        compile_seconds=round(compilation.seconds, 1) if compilation else None,
        break_even_steps=result.break_even_steps,
    )


def _other(
    result: SearchResult, config: Config, speedup: Interval | None = None, **about: Any
) -> OtherPart:
    return OtherPart(changes=config.changes_from(result.baseline), live_speedup=speedup, **about)


def _learning(result: SearchResult) -> LearningPart:
    learning, larger = result.learning, result.larger_batch
    before, after = learning.global_batches
    return LearningPart(
        lr_rule=result.applied.lr_rule,
        lr_factor=round(learning.lr_factor, 6),
        batch_size=Sides(as_written=before, best=after),
        note=learning.note,
        larger_batch=None
        if larger is None
        else _other(result, larger.config, larger.speedup, check_seconds=round(larger.check_s)),
        training=result.training_note,
        refused=tuple(
            _other(
                result,
                record.config,
                blame=dict(record.guilty),
                why=record.difference or record.failure,
            )
            for record in result.rehearsals
            if record.is_blamed
        ),
    )


def _training_steps(result: SearchResult) -> TrainingStepsPart | None:
    steps, time = result.training_steps, result.figures.training
    if steps is None or time is None:
        return None
    return TrainingStepsPart(
        epochs=steps.length.epochs,
        steps=steps.length.steps,
        seconds=Sides(as_written=time.before_s, best=time.after_s if result.changes else None),
        note=str(time),
    )


def _trials(result: SearchResult) -> tuple[TrialPart, ...]:
    knobs = set(result.baseline)
    return tuple(
        TrialPart(
            changes=str(Config(record.config.changes_from(result.baseline))),
            **{key: value for key, value in row.items() if key not in knobs},
        )
        for row, record in zip(result.trials, result.records, strict=True)
    )
