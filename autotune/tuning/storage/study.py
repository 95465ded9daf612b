"""Study: the record of a run, stored as an Optuna study in the run directory or elsewhere.

It holds everything that ``resume`` and reports need, each fact stored as soon as it is known: a
search that is killed at any moment can go on. Not covered: two machines whose clocks or host names
are equal by mistake.
"""

from __future__ import annotations

import math
import socket
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import cache
from typing import Any, Generic, Self, TypeVar, cast, overload

import optuna
import psutil
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler, PartialFixedSampler
from optuna.trial import TrialState, create_trial
from pydantic import TypeAdapter, ValidationError
from sqlalchemy.exc import SQLAlchemyError

from autotune.errors import RunDirectoryError
from autotune.knobs.space.space import ResolvedSpace
from autotune.machine.hardware import Hardware
from autotune.measurement.goal import Goal
from autotune.measurement.interval import Interval
from autotune.measurement.outcome import Outcome, RunMode
from autotune.measurement.rounds import Speeds, speeds
from autotune.measurement.turn import Played
from autotune.program.config import Config, KnobValue
from autotune.program.domain import Domain
from autotune.program.sources import Files
from autotune.results.blame import judged
from autotune.results.record import (
    FORMAT,
    BaselineInfo,
    ClaimProcess,
    Lease,
    PlayedRounds,
    SearchInfo,
    TrialRecord,
)
from autotune.results.rehearsals import Canary, RehearsalRecord
from autotune.results.result import Finding, SearchResult
from autotune.results.wording import times

Value = TypeVar("Value")
Storage = str | optuna.storages.BaseStorage  # a URL, or an object of Optuna's
ROUNDS = "rounds:"  # begins the names of attributes, one for each answer of a rig
MOST_CHECKS = 2  # of what configs learn, beyond the budget
# Of a result: stored already
KEPT_APART = {"records", "rehearsals", "head", "facts", "claim", "canary"}
# Endings that a config's neighbours share, so that the sampler should avoid those as well
MEMORY_OUTCOMES = {Outcome.OUT_OF_MEMORY, Outcome.HOST_OUT_OF_MEMORY, Outcome.SHARED_MEMORY}
Trial = optuna.trial.Trial  # one that a sampler chose


class Stored(Generic[Value]):
    """An attribute of a study that is written to its storage when it is set, and read once.

    Its *kind* is a type that pydantic can read and write as JSON; it is *unknown* until it is set.
    """

    def __init__(self, kind: Any, unknown: Value) -> None:
        self._kind, self._unknown = kind, unknown

    def __set_name__(self, _owner: type[Study], name: str) -> None:
        self._name = name

    @overload
    def __get__(self, study: None, _owner: type[Study]) -> Self: ...
    @overload
    def __get__(self, study: Study, _owner: type[Study]) -> Value: ...
    def __get__(self, study: Study | None, _owner: type[Study]) -> Value | Self:
        if study is None:
            return self
        if self._name not in study.read:
            raw = study.optuna.user_attrs.get(self._name)
            study.read[self._name] = self._unknown if raw is None else _read(self._kind, raw)
        value: Value = study.read[self._name]
        return value

    def __set__(self, study: Study, value: Value) -> None:
        study.optuna.set_user_attr(self._name, _dump(self._kind, value))
        study.read[self._name] = value


class Study:
    """The record of one run.

    Attributes:
        head: What is searched, with which options and where; written once by ``create()``.
        facts: None until the baseline was measured.
        fence: How the last session kept trials from changing files, as a sentence.
        claim: The processes of the claim in the order in which they ran, of all candidates.
        rehearsals: In order; a config can occur more than once.
        canary: None if the exact settings were not compared before the search.
        failure: Why the program itself failed before anything was measured; empty if it did not.
        checks_learning: Whether what a larger global batch learns is checked, beyond the budget.
        learning_checks: The number of learning checks that this process has made.
    """

    head = Stored[SearchInfo](SearchInfo, cast("SearchInfo", None))
    facts = Stored[BaselineInfo | None](BaselineInfo | None, None)
    fence = Stored[str](str, "")
    mode = Stored[RunMode](RunMode, RunMode())
    spent_s = Stored[float](float, 0.0)
    claim = Stored[tuple[ClaimProcess, ...]](tuple[ClaimProcess, ...], ())
    rehearsals = Stored[tuple[RehearsalRecord, ...]](tuple[RehearsalRecord, ...], ())
    canary = Stored[Canary | None](Canary | None, None)
    failure = Stored[str](str, "")
    checks_learning = Stored[bool](bool, False)  # noqa: FBT003 - what it is before it is set

    def __init__(self, study: optuna.Study) -> None:
        self.optuna = study
        self.read: dict[str, Any] = {}
        self.learning_checks = 0
        # A record is written once and read before and after each trial: parsing all of them
        # again each time took half of a search's own time.
        self._records: dict[int, TrialRecord] = {}
        self._rounds: list[PlayedRounds] = []
        self._speeds: Speeds | None = None

    @classmethod
    def create(cls, storage: Storage, name: str, head: SearchInfo) -> Study:
        """Create a new study that holds *head*; its name must be free in this storage."""
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        made = optuna.create_study(storage=storage, study_name=name, direction="maximize")
        study = cls(made)
        study.head = head
        study.checks_learning = head.options.checks_learning
        return study

    @classmethod
    def load(cls, storage: Storage, name: str) -> Study:
        """Open an existing study.

        Raises:
            RunDirectoryError: when there is no such study, it is damaged, or it has another format.
        """
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        try:
            study = optuna.load_study(storage=storage, study_name=name)
        except KeyError as error:
            raise RunDirectoryError(
                f"There is no record of a search in {storage}. 'autotune search PROGRAM' starts "
                "one."
            ) from error
        except (SQLAlchemyError, RuntimeError) as error:  # damaged; of another version of Optuna
            reason = " ".join(str(getattr(error, "orig", error)).split())
            raise RunDirectoryError(_unreadable(storage, reason)) from error
        version = (study.user_attrs.get("head") or {}).get("format")
        if version != FORMAT:
            raise RunDirectoryError(
                f"The record in {storage} was written in format {version}, but this autotune reads "
                f"{FORMAT}. Start a new search."
            )
        found = cls(study)
        with _faults_told(storage):
            found.head  # noqa: B018 - reads it
        return found

    @property
    def hardware(self) -> Hardware:
        """The machine, with the GPUs that the program sees once the baseline was measured."""
        return self.head.machine(self.facts)

    @property
    def files(self) -> Files:
        """What the program was seen to import of the user's, as far as that is known."""
        return (self.facts.files if self.facts is not None else {}) or self.head.program.files

    @property
    def goal(self) -> Goal:
        """What is compared, and within which limits."""
        return self.head.options.goal

    def add_rounds(self, played: PlayedRounds) -> None:
        """Record rounds of the race, as soon as they are played."""
        name = f"{ROUNDS}{len(self.rounds):05d}"
        self.optuna.set_user_attr(name, _dump(PlayedRounds, played))
        self._rounds.append(played)
        self._speeds = None

    @property
    def rounds(self) -> list[PlayedRounds]:
        """All rounds of the race, in order."""
        if not self._rounds:
            attrs = self.optuna.user_attrs
            names = sorted(name for name in attrs if name.startswith(ROUNDS))
            self._rounds = [_read(PlayedRounds, attrs[name]) for name in names]
        return [*self._rounds]

    @property
    def variables(self) -> set[str]:
        """Environment variables that its processes get, by the command line or by any config."""
        configs = {one.config for one in self.records} | {one.config for one in self.claim}
        configs.update(*(one.configs for one in self.rounds))
        tuned = {name[1:] for config in configs for name in config if name[0] == "$"}
        return self.head.variables | tuned

    @property
    def speeds(self) -> Speeds | None:
        """What all rounds of the race, of all sessions, say about configs; None before the first.

        Those of one answer of a rig, of about two seconds, count as one round: what the machine
        does to a config's ratio lasts longer than a turn.
        """
        rounds = self.rounds
        if self._speeds is None and rounds:
            processes: dict[int, list[Mapping[Config, Played]]] = {}
            for one in rounds:
                processes.setdefault(one.process, []).append(one.stretch)
            self._speeds = speeds([*processes.values()], rounds[0].configs[0])
        return self._speeds

    @property
    def result(self) -> SearchResult | None:
        """What the last session found; None while the first one is not over.

        What the study holds anyway, such as the trials, is not stored a second time.

        Raises:
            RunDirectoryError: when another version of autotune wrote it in other words.
        """
        raw = self.optuna.user_attrs.get("result")
        if raw is None:
            return None
        with _faults_told("the study"):
            kept = {
                **raw,
                "records": judged(self.records, _read(Config, raw["baseline"])),
                "rehearsals": self.rehearsals,
                "facts": self.facts,
                "canary": self.canary,
                "head": self.head,
            }
            result: SearchResult = _adapter(SearchResult).validate_python(kept)
            own = tuple(one for one in self.claim if one.config == result.candidate)
            return replace(result, claim=own)

    @result.setter
    def result(self, result: SearchResult) -> None:
        kept = _adapter(SearchResult).dump_python(result, mode="json", exclude=KEPT_APART)
        self.optuna.set_user_attr("result", kept)

    @property
    def found(self) -> str | None:
        """The result in a few words; None and raises as ``result``."""
        raw = self.optuna.user_attrs.get("result")
        if raw is None:
            return None
        with _faults_told("the study"):
            finding, speedup = Finding(raw["finding"]), _read(Interval, raw["speedup"])
        return f"{times(speedup)} faster" if finding is Finding.FASTER else str(finding)

    @property
    def guilty(self) -> list[Mapping[str, KnobValue]]:
        """The changes with which no config is recommended, because of what was found of them."""
        refused = {} if self.canary is None else self.canary.values
        return [
            *({knob: value} for knob, values in refused.items() for value in values),
            *(
                record.guilty
                for record in self.rehearsals
                if record.is_blamed and not self.awaits_check(record)
            ),
        ]

    def awaits_check(self, record: RehearsalRecord) -> bool:
        """Return whether what a config learns was left unchecked, and is to be checked yet.

        A search makes a few checks beyond its budget, so that it ends; a resumed one does so again.
        """
        may_check = self.checks_learning and self.learning_checks < MOST_CHECKS
        return may_check and record.unchecked_s is not None

    @property
    def records(self) -> list[TrialRecord]:
        """The trials that were measured or failed, in order; the first is the baseline.

        Trials that are still open, or were open when a search was killed, are left out. Speedups
        are those that all rounds show together.
        """
        self._read_new()
        speeds = self.speeds
        return [
            replace(record, speedup=speeds.of(record.config).interval)
            if record.ending is None and speeds is not None and record.config in speeds.configs[1:]
            else record
            for _, record in sorted(self._records.items())
        ]

    def _read_new(self) -> None:
        for trial in self.optuna.get_trials(deepcopy=False):
            if trial.number not in self._records and "record" in trial.user_attrs:
                self._records[trial.number] = _read(TrialRecord, trial.user_attrs["record"])

    @property
    def space(self) -> ResolvedSpace:
        """What may be proposed, with the values that the knobs had when the search began.

        Another version of autotune may offer other values, but Optuna takes no new ones in a study.
        The facts of the baseline must be known.
        """
        facts = self.facts
        assert facts is not None, "the baseline was measured"
        space = self.head.space.resolve(self.hardware, facts.profile)
        begun = {
            knob: distribution.choices
            for trial in self.optuna.get_trials(deepcopy=False)
            for knob, distribution in trial.distributions.items()
            if isinstance(distribution, CategoricalDistribution)
        }
        domains = {
            knob: Domain(tuple(v for v in begun[knob] if v is not None), domain.alone)
            for knob, domain in space.domains.items()
            if knob in begun
        }
        space = replace(space, domains=domains)
        return space if self.canary is None else space.without(self.canary.refused)

    def take_lease(self, *, force: bool = False) -> None:
        """Mark this run as in use by this process, and close trials that one that died left open.

        With *force*, the lease of a holder on another host is taken over, of which nobody can see
        from here whether it still runs. A living process of this host keeps it.

        Raises:
            RunDirectoryError: when another living process works on the run.
        """
        raw = self.optuna.user_attrs.get("lease")
        taken = _taken_lease(None if raw is None else _read(Lease, raw), force=force)
        self.optuna.set_user_attr("lease", _dump(Lease, taken))
        for trial in self.optuna.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            self.optuna.tell(trial.number, state=TrialState.FAIL)

    def release_lease(self) -> None:
        """Mark this run as free; the process that took the lease must do so at its end."""
        self.optuna.set_user_attr("lease", None)

    def propose(
        self, space: ResolvedSpace, at: Config, sampler: BaseSampler
    ) -> tuple[Trial, Config]:
        """Open a trial that a sampler chose, among configs that share *at*'s restart knobs.

        Its config is canonical, but may have conflicts or be known already.
        """
        held = {n: at[n] for n in space.domains if n in space.restart}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            self.optuna.sampler = PartialFixedSampler(held, sampler) if held else sampler
        trial = self.optuna.ask(_distributions(space))
        return trial, space.canonical(at.replace(**trial.params))

    def tell(
        self,
        record: TrialRecord,
        space: ResolvedSpace,
        trial: Trial | None = None,
        *,
        is_known: bool = False,
    ) -> None:
        """Record how a trial ended; the record of a known config is not stored twice.

        Samplers see the logarithm of the speedup's lower bound, so that few rounds do not mislead
        them. Out of memory makes the trial infeasible (pruned, with a violated constraint), so its
        neighbours are avoided. Any other ending is a failed trial, which samplers ignore.

        Args:
            trial: The open one that a sampler chose; None where autotune chose the config. Then it
                is written at once and whole: Optuna takes a transaction for each parameter of a
                trial that it opens. Of values that are not offered, such as a rank's share of the
                batch, Optuna does not learn.
        """
        self._read_new()
        value, state, constraints = None, TrialState.FAIL, {}
        if record.measurement is not None and record.speedup is not None:
            value, state = math.log(record.speedup.low), TrialState.COMPLETE
        elif record.outcome in MEMORY_OUTCOMES:
            state, constraints = TrialState.PRUNED, {"memory": 1.0}
        stored = {} if is_known else {"record": _dump(TrialRecord, record)}
        if trial is None:
            config, of = record.config, _distributions(space)
            params = {n: config[n] for n, d in space.domains.items() if config[n] in d.values}
            whole = create_trial(
                state=state,
                value=value,
                params=params,
                distributions={n: of[n] for n in params},
                user_attrs=stored,
                constraints=constraints,
            )
            self.optuna.add_trial(whole)
            number = self.optuna.get_trials(deepcopy=False)[-1].number
        else:
            number = trial.number
            for name, kept in stored.items():
                trial.set_user_attr(name, kept)
            for name, excess in constraints.items():
                trial.set_constraint(name, excess)
            self.optuna.tell(trial, value, state=state)
        if not is_known:
            self._records[number] = record


def _distributions(space: ResolvedSpace) -> dict[str, BaseDistribution]:
    # numbers as well, because only the listed values are allowed
    return {n: CategoricalDistribution(d.values) for n, d in space.domains.items()}


def _taken_lease(held: Lease | None, *, force: bool) -> Lease:
    own = Lease(socket.gethostname(), psutil.Process().pid, psutil.Process().create_time())
    if held is None or held == own or not _is_alive(held):
        return own
    holder = f"Another autotune (process {held.pid} on {held.host}) works on this run."
    if held.host == own.host:
        raise RunDirectoryError(f"{holder} Wait for it, or end it: kill {held.pid}")
    if not force:
        raise RunDirectoryError(
            f"{holder} Wait for it or end it; if that machine or container is gone, take "
            "the run over: autotune resume --force"
        )
    return own


def _is_alive(lease: Lease) -> bool:
    if lease.host != socket.gethostname():
        return True  # processes of another host cannot be seen from here
    try:
        # Process ids are reused, so the start time must agree as well
        holder = psutil.Process(lease.pid)
        # One that nobody has waited for yet keeps its number, and works no more
        has_ended = holder.status() in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}
        return not has_ended and abs(holder.create_time() - lease.started) < 1.0
    except psutil.NoSuchProcess:
        return False


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _unreadable(storage: object, reason: str) -> str:
    return (
        f"The record in {storage} cannot be read ({reason}): it is damaged, or another version of "
        "autotune wrote it. Start a new search, or remove its folder."
    )


@contextmanager
def _faults_told(storage: object) -> Iterator[None]:
    try:
        yield
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        reason = f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}"
        raise RunDirectoryError(_unreadable(storage, reason)) from error
    except KeyError as error:
        raise RunDirectoryError(_unreadable(storage, f"{error} is missing")) from error


def _read(kind: Any, raw: Any) -> Any:
    return _adapter(kind).validate_python(raw)


def _dump(kind: Any, value: Any) -> Any:
    return _adapter(kind).dump_python(value, mode="json")
