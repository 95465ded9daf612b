"""Study: the record of a run, stored as an Optuna study.

It holds everything that ``resume`` and reports need, each fact stored as soon as it is known: a
search that is killed at any moment can go on. It is read once, when it is opened or leased; from
then on a search goes by what it has in memory, which no fault of a disk takes from it.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cache, partial
from typing import Any, Generic, Self, TypeVar, cast, overload

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.samplers import BaseSampler, PartialFixedSampler
from optuna.storages import BaseStorage
from optuna.trial import TrialState, create_trial
from pydantic import TypeAdapter

from autotune.errors import RecordError, RunDirectoryError
from autotune.files.lease import Lease
from autotune.knobs.space.space import ResolvedSpace
from autotune.machine.hardware import Hardware
from autotune.measurement.goal import Goal
from autotune.measurement.interval import Interval
from autotune.measurement.outcome import NOBODYS, Outcome, RunMode
from autotune.measurement.rounds import Speeds, of_process, pooled
from autotune.program.config import Config, KnobValue
from autotune.program.domain import Domain
from autotune.program.may_change import MayChange
from autotune.program.sources import Files
from autotune.results.blame import judged
from autotune.results.finding import Finding
from autotune.results.record import (
    FORMAT,
    BaselineInfo,
    ClaimProcess,
    PlayedRounds,
    SearchInfo,
    TrialRecord,
    latest,
)
from autotune.results.rehearsals import Canary, RehearsalRecord, blames
from autotune.results.result import SearchResult
from autotune.results.wording import factor
from autotune.sharing.membership import ALONE, Membership
from autotune.tuning.storage.record_storage import RecordStorage, faults_told

Value = TypeVar("Value")
ROUNDS = "rounds:"  # begins the names of attributes, one for each answer of a rig
MOST_CHECKS = 2  # of what configs learn, beyond the budget
# Of a result: stored already
KEPT_APART: dict[str, Any] = {
    **dict.fromkeys(("records", "rehearsals", "head", "facts", "claim", "canary"), True),
    "larger_batch": {"claim"},
}
# Endings that a config's neighbours share, so that the sampler should avoid those as well
MEMORY_OUTCOMES = {Outcome.OUT_OF_MEMORY, Outcome.HOST_OUT_OF_MEMORY, Outcome.SHARED_MEMORY}
Trial = optuna.trial.Trial  # one that a sampler chose


class Stored(Generic[Value]):
    """An attribute of a study that is written to its storage when it is set.

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
            raw = study.attributes.get(self._name)
            known = self._unknown if raw is None else study.parsed(self._kind, raw)
            study.read[self._name] = known
        value: Value = study.read[self._name]
        return value

    def __set__(self, study: Study, value: Value) -> None:
        study.read[self._name] = value
        study.keep(self._name, _dump(self._kind, value))


class RaceRounds:
    """What was played in a race.

    Attributes:
        own: All rounds of this machine, of all sessions, in order.
    """

    def __init__(self, own: Iterable[PlayedRounds]) -> None:
        self.own = [*own]
        self._elsewhere: Mapping[str, Sequence[PlayedRounds]] = {}
        self._fits: dict[tuple[str, int, Config], tuple[int, Speeds | None]] = {}
        self._speeds: Speeds | None = None

    def add(self, played: PlayedRounds) -> None:
        """Add rounds of this machine."""
        self.own.append(played)
        self._speeds = None

    def hear(self, elsewhere: Mapping[str, Sequence[PlayedRounds]]) -> None:
        """Take the rounds of other machines, by machine: all that are known."""
        if sum(map(len, elsewhere.values())) != sum(map(len, self._elsewhere.values())):
            self._elsewhere = {name: tuple(rounds) for name, rounds in elsewhere.items()}
            self._speeds = None

    @property
    def speeds(self) -> Speeds | None:
        """What all rounds say about configs; None before the first with two configs.

        Those of one answer of a rig, of about two seconds, count as one round: what the machine
        does to a config's ratio lasts longer than a turn. A config that only other machines have
        played is compared by the program as written, which all of them play.
        """
        machines = {"": self.own, **self._elsewhere}
        played = [rounds[0] for rounds in machines.values() if rounds]
        if self._speeds is None and played:
            first = played[0].configs[0]
            self._speeds = pooled([[*self._fitted(n, first, machines[n])] for n in machines])
        return self._speeds

    def _fitted(
        self, machine: str, first: Config, rounds: Iterable[PlayedRounds]
    ) -> Iterator[Speeds | None]:
        # A process of which no more was heard is not fitted again
        processes: dict[int, list[PlayedRounds]] = {}
        for one in rounds:
            processes.setdefault(one.process, []).append(one)
        for process, its in processes.items():
            key = machine, process, first
            if self._fits.get(key, (0, None))[0] != len(its):
                self._fits[key] = len(its), of_process([one.stretch for one in its], first)
            yield self._fits[key][1]


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
        elsewhere: Trials in fresh processes of other machines that share the search.
        checks_learning: Whether what other samples in a step learn is checked beyond the budget, as
            a resumed search was asked to.
        learning_checks: The number of learning checks that this process has made.
        storage: Where the record is.
        sharing: The other machines that share the search.
        attributes: All facts as they were read from the storage, by their names.
        read: Facts that were asked for or set since, by their names.
        fault: Why the record could not be written any more; None if it can. What is set after that
            is kept in memory only, so that the record ends at one moment as after a kill.
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
    elsewhere = Stored[tuple[TrialRecord, ...]](tuple[TrialRecord, ...], ())
    checks_learning = Stored[bool](bool, False)  # noqa: FBT003 - what it is before it is set

    def __init__(self, study: optuna.Study, storage: RecordStorage) -> None:
        self.optuna = study
        self.learning_checks = 0
        self.fault: RecordError | None = None
        self.storage = storage
        self.sharing: Membership = ALONE
        self._lease = ""
        self._recall()

    @classmethod
    def create(cls, storage: RecordStorage, name: str, head: SearchInfo) -> Study:
        """Create a new study that holds *head*; its name must be free in this storage.

        Raises:
            RecordError: when it cannot be written.
        """
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        made = optuna.create_study(
            storage=cast("BaseStorage", storage), study_name=name, direction="maximize"
        )
        study = cls(made, storage)
        study.head = head
        study.keep("lease", None)
        return study

    @classmethod
    def load(cls, storage: RecordStorage, name: str) -> Study:
        """Open an existing study.

        Raises:
            RecordError: when there is no such study, or it cannot be read.
            RunDirectoryError: when it has another format.
        """
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        found = optuna.load_study(storage=cast("BaseStorage", storage), study_name=name)
        with faults_told(storage):
            version = found.user_attrs["head"]["format"]
        if version != FORMAT:
            raise RunDirectoryError(
                f"The record {storage} was written in format {version}, but this autotune reads "
                f"{FORMAT}. Start a new search."
            )
        study = cls(found, storage)
        study.head  # noqa: B018 - reads it
        return study

    def _recall(self) -> None:
        self.attributes, self.read = self.optuna.user_attrs, dict[str, Any]()
        played = sorted(name for name in self.attributes if name.startswith(ROUNDS))
        self._rounds = RaceRounds(
            self.parsed(PlayedRounds, self.attributes[name]) for name in played
        )
        trials = self.optuna.get_trials(deepcopy=False)
        self._trials = len(trials)
        self._records: dict[int, TrialRecord] = {  # by the numbers of Optuna's trials
            trial.number: self.parsed(TrialRecord, trial.user_attrs["record"])
            for trial in trials
            if "record" in trial.user_attrs
        }
        self._begun = {knob: of for trial in trials for knob, of in trial.distributions.items()}

    def parsed(self, kind: Any, raw: Any) -> Any:
        """Return what was stored as JSON, as a value of a kind that pydantic knows.

        Raises:
            RecordError: when it is something else.
        """
        with faults_told(self.storage):
            return _adapter(kind).validate_python(raw)

    def keep(self, name: str, value: Any) -> None:
        """Write an attribute.

        Raises:
            RecordError: when that fails, for the first time.
        """
        self._write(lambda: self.optuna.set_user_attr(name, value))

    def _write(self, write: Callable[[], object]) -> None:
        if self.fault is None:
            with self._fault_noted():
                write()

    @contextmanager
    def _fault_noted(self) -> Iterator[None]:
        try:
            yield
        except RecordError as error:
            self.fault = error
            raise

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
        self._rounds.add(played)
        self.keep(name, _dump(PlayedRounds, played))
        self.sharing.played(played)

    @property
    def rounds(self) -> list[PlayedRounds]:
        """All rounds of the race on this machine, in order."""
        return [*self._rounds.own]

    @property
    def variables(self) -> set[str]:
        """Environment variables that its processes get, by the command line or by any config."""
        configs = {one.config for one in self.records} | {one.config for one in self.claim}
        configs.update(*(one.configs for one in self.rounds))
        tuned = {name[1:] for config in configs for name in config if name[0] == "$"}
        return self.head.variables | tuned

    @property
    def speeds(self) -> Speeds | None:
        """What all rounds of the race say about configs, as ``RaceRounds`` has it."""
        return self._rounds.speeds

    @property
    def result(self) -> SearchResult | None:
        """What the last session found; None while the first one is not over.

        What the study holds anyway, such as the trials, is not stored a second time.

        Raises:
            RecordError: when another version of autotune wrote it in other words.
        """
        raw = self.attributes.get("result")
        if raw is None:
            return None
        kept = {
            **raw,
            "records": judged(self.known_records, self.parsed(Config, raw.get("baseline"))),
            "rehearsals": self.rehearsals,
            "facts": self.facts,
            "canary": self.canary,
            "head": self.head,
        }
        result: SearchResult = self.parsed(SearchResult, kept)
        larger = result.larger_batch
        if larger is not None:
            larger = replace(larger, claim=self.claim_of(larger.config))
        return replace(result, claim=self.claim_of(result.candidate), larger_batch=larger)

    @result.setter
    def result(self, result: SearchResult) -> None:
        kept = _adapter(SearchResult).dump_python(result, mode="json", exclude=KEPT_APART)
        self.attributes["result"] = kept
        self.keep("result", kept)

    def claim_of(self, config: Config | None) -> tuple[ClaimProcess, ...]:
        """Return the processes in which a config was compared, in order."""
        return tuple(one for one in self.claim if one.config == config)

    @property
    def found(self) -> str | None:
        """The result in a few words; None and raises as ``result``."""
        raw = self.attributes.get("result")
        if raw is None:
            return None
        finding = self.parsed(Finding, raw.get("finding"))
        speedup = self.parsed(Interval, raw.get("speedup"))
        return f"{factor(speedup)} faster" if finding is Finding.FASTER else str(finding)

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

    def fault_of(self, config: Config) -> str:
        """Return why a config may not be recommended on this machine; empty if it may."""
        for record in latest(self.records):
            if record.config == config and record.ending and record.outcome not in NOBODYS:
                return record.ending.reason
        blamed = [one for one in self.rehearsals if one.config == config and one.is_blamed]
        if blamed:
            return blames(blamed)[0]
        is_guilty = any(changes.items() <= config.items() for changes in self.guilty)
        return "it trains something else here" if is_guilty else ""

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
        return self._up_to_date(record for _, record in sorted(self._records.items()))

    @property
    def known_records(self) -> list[TrialRecord]:
        """The ``records``, then what other machines have tried in fresh processes."""
        return [*self.records, *self._up_to_date(self.elsewhere)]

    def _up_to_date(self, records: Iterable[TrialRecord]) -> list[TrialRecord]:
        speeds = self.speeds
        return [
            replace(record, speedup=speeds.of(record.config).interval)
            if record.ending is None and speeds is not None and record.config in speeds.configs[1:]
            else record
            for record in records
        ]

    def hear(self, elsewhere: Mapping[str, Sequence[PlayedRounds]]) -> None:
        """Take the rounds of other machines, by machine: all that are known."""
        self._rounds.hear(elsewhere)

    @property
    def space(self) -> ResolvedSpace:
        """What may be proposed, with the values that the knobs had when the search began.

        Another version of autotune may offer other values, but Optuna takes no new ones in a study.
        The facts of the baseline must be known.
        """
        facts = self.facts
        assert facts is not None, "the baseline was measured"
        space = self.head.resolve(self.hardware, facts.profile)
        begun = {
            knob: distribution.choices
            for knob, distribution in self._begun.items()
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

        The record is read anew, because another process may have written since it was opened.

        Raises:
            RunDirectoryError: when another living process works on the run.
        """
        lease = Lease.of_this_process()
        self._lease = json.dumps(_dump(Lease, lease))

        def taken(held: str) -> str:
            lease.check(self.parsed(Lease | None, json.loads(held)), force=force)
            return self._lease

        self._exchange_lease(taken)
        for trial in self.optuna.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            self.optuna.tell(trial.number, state=TrialState.FAIL)
        self._recall()

    def release_lease(self) -> None:
        """Mark this run as free; the process that took the lease must do so at its end.

        Nothing changes if another process has taken it over since.
        """
        self._write(
            lambda: self._exchange_lease(lambda held: "null" if held == self._lease else held)
        )

    def _exchange_lease(self, change: Callable[[str], str]) -> None:
        number = self.storage.get_study_id_from_name(self.optuna.study_name)
        self.storage.exchange(number, "lease", change)

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
        with self._fault_noted():
            trial = self.optuna.ask(_distributions(space))
        self._trials += 1
        self._begun.update(trial.distributions)
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
        value, state, constraints = None, TrialState.FAIL, {}
        if record.measurement is not None and record.speedup is not None:
            value, state = math.log(record.speedup.low), TrialState.COMPLETE
        elif record.outcome in MEMORY_OUTCOMES:
            state, constraints = TrialState.PRUNED, {"memory": 1.0}
        stored = {} if is_known else {"record": _dump(TrialRecord, record)}
        if not is_known:
            self._records[self._trials if trial is None else trial.number] = record
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
            self._trials += 1
            self._begun.update(whole.distributions)
            self._write(lambda: self.optuna.add_trial(whole))
            return
        for name, kept in stored.items():
            self._write(partial(trial.set_user_attr, name, kept))
        for name, excess in constraints.items():
            self._write(partial(trial.set_constraint, name, excess))
        self._write(lambda: self.optuna.tell(trial, value, state=state))


def _distributions(space: ResolvedSpace) -> dict[str, BaseDistribution]:
    # numbers as well, because only the listed values are allowed
    return {n: CategoricalDistribution(d.values) for n, d in space.domains.items()}


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _dump(kind: Any, value: Any) -> Any:
    return _adapter(kind).dump_python(value, mode="json")


def allow(study: Study, may_change: MayChange) -> None:
    """Have a search go on with another level of what may change of the training.

    Where nothing may change, trainings are compared with their own random draws, so what was found
    under other conditions is compared again.
    """
    was = study.head.options.may_change
    if may_change is not was and MayChange.NOTHING in {may_change, was}:
        study.canary, study.rehearsals = None, ()
    study.head = replace(study.head, options=replace(study.head.options, may_change=may_change))
    study.checks_learning = may_change is MayChange.BATCH
