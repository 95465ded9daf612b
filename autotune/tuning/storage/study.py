"""Study: the record of a run, stored as an Optuna study in the run directory or elsewhere.

It holds everything that ``resume`` and reports need, each fact stored as soon as it is known.

Covered: a search that was killed at any moment; two searches on one run. Not covered: two machines
whose clocks or host names are equal by mistake.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, cached_property
from typing import Any, TypeVar

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution
from optuna.trial import TrialState, create_trial
from pydantic import TypeAdapter, ValidationError
from sqlalchemy.exc import SQLAlchemyError

from autotune.errors import RunDirectoryError
from autotune.knobs.space.space import ResolvedSpace
from autotune.machine.hardware import Hardware
from autotune.measurement.goal import Goal
from autotune.measurement.interval import Interval
from autotune.measurement.outcome import Outcome
from autotune.measurement.rounds import Speeds, speeds
from autotune.measurement.run_mode import RunMode
from autotune.measurement.turn import Played
from autotune.program.config import Config, KnobValue
from autotune.program.domain import Domain
from autotune.program.rehearsal import Canary, RehearsalRecord
from autotune.results.blame import judged
from autotune.results.record import (
    FORMAT,
    BaselineInfo,
    ClaimProcess,
    Lease,
    PlayedRounds,
    SearchInfo,
    SearchOptions,
    TrialRecord,
)
from autotune.results.result import Finding, SearchResult
from autotune.results.wording import times
from autotune.tuning.choosing.sampler import distributions, holding, make_sampler
from autotune.tuning.storage import lease

__all__ = ["Study", "Trial"]

Value = TypeVar("Value")
Storage = str | optuna.storages.BaseStorage  # a URL, or an object of Optuna's
# Endings that a config's neighbours share, so that the sampler should avoid those as well
ROUNDS = "rounds:"  # begins the names of attributes, one for each answer of a rig
MOST_CHECKS = 2  # of what configs learn, beyond the budget
KEPT_APART = {
    "records",
    "rehearsals",
    "head",
    "facts",
    "claim",
    "canary",
}  # of a result: stored already
MEMORY_OUTCOMES = {Outcome.OUT_OF_MEMORY, Outcome.HOST_OUT_OF_MEMORY, Outcome.SHARED_MEMORY}


@dataclass(frozen=True)
class Chosen:
    """A trial that the caller chose, before it is written.

    Attributes:
        params: The value of each knob that is searched.
        distributions: Their choices, as Optuna takes them.
    """

    params: dict[str, KnobValue]
    distributions: dict[str, BaseDistribution]


Trial = Chosen | optuna.trial.Trial


class Study:
    """The record of one run.

    All values are stored as JSON of autotune's frozen dataclasses. Each property reads the storage
    anew, so it also shows what another process wrote; finished trials never change, and are read
    once.

    Args:
        study: The Optuna study.
        options: Which sampler proposes, and its seed.

    Attributes:
        learning_checks: The number of learning checks that this process has made.
    """

    def __init__(self, study: optuna.Study, options: SearchOptions) -> None:
        self.learning_checks = 0
        self._study = study
        self._sampler = make_sampler(options.sampler, options.seed)
        # A record is written once and read before and after each trial: parsing all of them
        # again each time took half of a search's own time.
        self._records: dict[int, TrialRecord] = {}
        self._facts: BaselineInfo | None = None  # read often, as the head is
        self._rehearsals: list[RehearsalRecord] | None = None
        self._rounds: list[PlayedRounds] = []
        self._speeds: Speeds | None = None

    @classmethod
    def create(cls, storage: Storage, name: str, head: SearchInfo) -> Study:
        """Create and return a new study.

        Args:
            storage: Optuna's storage, or its URL.
            name: Name of the study in it.
            head: What is searched; stored at once.

        Raises:
            optuna.exceptions.DuplicatedStudyError: when the name is taken.
        """
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = cls(
            optuna.create_study(storage=storage, study_name=name, direction="maximize"),
            head.options,
        )
        study._set("head", head)
        return study

    @classmethod
    def load(cls, storage: Storage, name: str) -> Study:
        """Open an existing study.

        Args:
            storage: Optuna's storage URL.
            name: Name of the study in it.

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
        with _faults_told(storage):
            options = _read(SearchInfo, study.user_attrs["head"]).options
        # A resumed sampler does not repeat its draws
        return cls(study, replace(options, seed=options.seed + len(study.trials)))

    @cached_property
    def head(self) -> SearchInfo:
        """What is searched, with which options and where; written once by ``create()``."""
        return _read(SearchInfo, self._study.user_attrs["head"])

    @property
    def facts(self) -> BaselineInfo | None:
        """What was learned from the untouched program; None until the baseline was measured."""
        if self._facts is None and (raw := self._study.user_attrs.get("facts")) is not None:
            self._facts = _read(BaselineInfo, raw)
        return self._facts

    @facts.setter
    def facts(self, facts: BaselineInfo) -> None:
        self._set("facts", facts)
        self._facts = facts

    @property
    def hardware(self) -> Hardware:
        """The machine, with the GPUs that the program sees once the baseline was measured."""
        return self.head.machine(self.facts)

    @property
    def goal(self) -> Goal:
        """What is compared, and within which limits."""
        return self.head.options.goal

    @property
    def fence(self) -> str:
        """How the last session kept trials from changing files, as a sentence.

        Empty before the first session.
        """
        return str(self._study.user_attrs.get("fence", ""))

    @fence.setter
    def fence(self, sentence: str) -> None:
        self._study.set_user_attr("fence", sentence)

    @property
    def mode(self) -> RunMode:
        """How rigs must run the program so that it trains.

        It is stored so that a resumed search need not find it out again.
        """
        return _read(RunMode, self._study.user_attrs.get("mode", {}))

    @mode.setter
    def mode(self, mode: RunMode) -> None:
        self._set("mode", mode)

    @property
    def spent_s(self) -> float:
        """Wall time in seconds that all sessions of this run have used."""
        return float(self._study.user_attrs.get("spent_s", 0.0))

    @spent_s.setter
    def spent_s(self, seconds: float) -> None:
        self._study.set_user_attr("spent_s", seconds)

    @property
    def claim(self) -> list[ClaimProcess]:
        """The fresh processes of the claim in the order in which they ran, of all candidates."""
        return _read(list[ClaimProcess], self._study.user_attrs.get("claim", []))

    def add_claim(self, process: ClaimProcess) -> None:
        """Record one more process of the claim, as soon as it is over."""
        self._study.set_user_attr("claim", _dump(list[ClaimProcess], [*self.claim, process]))

    def add_rounds(self, played: PlayedRounds) -> None:
        """Record rounds of the race, as soon as they are played."""
        self._read_rounds()
        self._set(f"{ROUNDS}{len(self._rounds):05d}", played)
        self._rounds.append(played)
        self._speeds = None

    @property
    def speeds(self) -> Speeds | None:
        """What all rounds of the race say about the speeds of configs; None before the first.

        Those of one answer of a rig, of about two seconds, count as one round: what the machine
        does to a config's ratio lasts longer than a turn. Different processes count as such, also
        those of earlier sessions.
        """
        self._read_rounds()
        if self._speeds is None and self._rounds:
            processes: dict[int, list[Mapping[Config, Played]]] = {}
            for one in self._rounds:
                own = processes.setdefault(one.process, [])
                own.append(one.stretch)
            first = self._rounds[0].configs[0]
            self._speeds = speeds([*processes.values()], first)
        return self._speeds

    @property
    def rounds(self) -> list[PlayedRounds]:
        """All rounds of the race, in order."""
        self._read_rounds()
        return [*self._rounds]

    def _read_rounds(self) -> None:
        """Read the rounds that an earlier session recorded."""
        if self._rounds:
            return
        attrs = self._study.user_attrs
        names = sorted(name for name in attrs if name.startswith(ROUNDS))
        self._rounds = [_read(PlayedRounds, attrs[name]) for name in names]

    @property
    def hints(self) -> list[tuple[Config, str]]:
        """Configs that earlier searches found best and that are tried early, with the reason."""
        return _read(list[tuple[Config, str]], self._study.user_attrs.get("hints", []))

    @hints.setter
    def hints(self, hints: Sequence[tuple[Config, str]]) -> None:
        self._study.set_user_attr("hints", _dump(list[tuple[Config, str]], list(hints)))

    @property
    def result(self) -> SearchResult | None:
        """What the last session found; None while the first one is not over.

        What the study holds anyway, such as the trials, is not stored a second time.

        Raises:
            RunDirectoryError: when another version of autotune wrote it in other words.
        """
        raw = self._study.user_attrs.get("result")
        if raw is None:
            return None
        with _faults_told("the study"):
            kept = dict(raw)
            kept["records"] = judged(self.records, _read(Config, raw["baseline"]))
            kept |= {"rehearsals": self.rehearsals, "facts": self.facts, "canary": self.canary}
            kept["head"] = self.head
            result: SearchResult = _adapter(SearchResult).validate_python(kept)
            own = (one for one in self.claim if one.config == result.candidate)
            return replace(result, claim=tuple(own))

    @result.setter
    def result(self, result: SearchResult) -> None:
        kept = _adapter(SearchResult).dump_python(result, mode="json", exclude=KEPT_APART)
        self._study.set_user_attr("result", kept)

    @property
    def found(self) -> str | None:
        """What the last session found in a few words; None while the first one is not over.

        Raises:
            RunDirectoryError: when another version of autotune wrote it in other words.
        """
        raw = self._study.user_attrs.get("result")
        if raw is None:
            return None
        with _faults_told("the study"):
            finding, speedup = Finding(raw["finding"]), _read(Interval, raw["speedup"])
        return f"{times(speedup)} faster" if finding is Finding.FASTER else str(finding)

    @property
    def failure(self) -> str:
        """Why the program itself failed before anything was measured; empty if it did not."""
        return str(self._study.user_attrs.get("failure", ""))

    @failure.setter
    def failure(self, why: str) -> None:
        self._study.set_user_attr("failure", why)

    @property
    def trial_count(self) -> int:
        """How many trials it holds."""
        return len(self._study.get_trials(deepcopy=False))

    @property
    def rehearsals(self) -> list[RehearsalRecord]:
        """The findings of all rehearsals, in order; a config can occur more than once."""
        if self._rehearsals is None:  # Optuna copies all that a study holds, each time it is read
            raw = self._study.user_attrs.get("rehearsals", [])
            self._rehearsals = _read(list[RehearsalRecord], raw)
        return [*self._rehearsals]

    @cached_property
    def canary(self) -> Canary | None:
        """What the exact settings train; None if that was not compared before the search."""
        raw = self._study.user_attrs.get("canary")
        return None if raw is None else _read(Canary, raw)

    def add_canary(self, found: Canary) -> None:
        """Record what the exact settings train."""
        self._set("canary", found)
        self.canary = found

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

        A search that rejects one config after the other must end some time, so it makes a few
        checks beyond its budget; a resumed one makes the same number again.
        """
        may_check = self.checks_learning and self.learning_checks < MOST_CHECKS
        return may_check and record.unchecked_s is not None

    @cached_property
    def checks_learning(self) -> bool:
        """Whether what a larger global batch learns is checked, beyond the budget."""
        asked = bool(self._study.user_attrs.get("checks_learning", False))
        return asked or self.head.options.checks_learning

    def check_learning(self) -> None:
        """Check it from now on, also in later sessions."""
        self._study.set_user_attr("checks_learning", True)  # noqa: FBT003 - Optuna's signature
        self.checks_learning = True

    def add_rehearsal(self, record: RehearsalRecord) -> None:
        """Record the finding of one more rehearsal, the baseline's included if it was needed."""
        records = [*self.rehearsals, record]
        self._study.set_user_attr("rehearsals", _dump(list[RehearsalRecord], records))
        self._rehearsals = records

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
        """Read the trials that were added since the last call, by any process."""
        for trial in self._study.get_trials(deepcopy=False):
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
            for trial in self._study.get_trials(deepcopy=False)
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
        """Mark this run as in use by this process, and clean up after one that died.

        Trials that the dead process left open are closed as failed. They have no record, so the
        search may propose their configs again.

        Args:
            force: Take over the lease of a holder on another host, because from here nobody can see
                whether it still runs. A living process of this host keeps it.

        Raises:
            RunDirectoryError: when another living process works on the run.
        """
        raw = self._study.user_attrs.get("lease")
        held = None if raw is None else _read(Lease, raw)
        self._set("lease", lease.take(held, force=force))
        while any(t.state is TrialState.WAITING for t in self._study.get_trials(deepcopy=False)):
            self._study.ask()  # takes a waiting trial first: it runs now, and ends below
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            self._study.tell(trial.number, state=TrialState.FAIL)

    def release_lease(self) -> None:
        """Mark this run as free; the process that took the lease must do so at its end."""
        self._study.set_user_attr("lease", None)

    def ask_for(self, config: Config, space: ResolvedSpace) -> Trial:
        """Return a trial of exactly this config, chosen by the caller and not by the sampler.

        The sampler learns from it all the same. ``tell()`` writes it, at once and whole: Optuna
        takes a transaction for each parameter of a trial that it opens.

        Of values that are not offered, such as a rank's share of the batch, Optuna does not learn.
        """
        of = distributions(space)
        params = {n: config[n] for n, d in space.domains.items() if config[n] in d.values}
        return Chosen(params, {n: of[n] for n in params})

    def propose(self, space: ResolvedSpace, at: Config) -> tuple[Trial, Config]:
        """Open a trial that the sampler chose.

        Args:
            space: What may be proposed.
            at: Restart knobs keep the values of this config, so that the open rig can measure it.

        Returns:
            The trial and its config, which is canonical but may have conflicts or be known already.
        """
        held = {n: at[n] for n in space.domains if n in space.restart}
        self._study.sampler = holding(self._sampler, held)
        trial = self._study.ask(distributions(space))
        return trial, space.canonical(at.replace(**trial.params))

    def tell(self, trial: Trial, record: TrialRecord) -> None:
        """Record how a trial ended and close it.

        The sampler sees the logarithm of the speedup's lower bound, so that few rounds do not
        mislead it. Out of memory makes the trial infeasible (pruned, with a violated
        constraint), so the sampler avoids its neighbours. Any other ending is a failed trial, which
        the sampler ignores.
        """
        self._read_new()
        speedup = record.speedup
        value, state, constraints = None, TrialState.FAIL, {}
        if record.measurement is not None and speedup is not None:
            value, state = math.log(speedup.low), TrialState.COMPLETE
        elif record.outcome in MEMORY_OUTCOMES:
            state, constraints = TrialState.PRUNED, {"memory": 1.0}
        stored = _dump(TrialRecord, record)
        if isinstance(trial, Chosen):
            number = self._add(trial, stored, value, state, constraints)
        else:
            number = trial.number
            trial.set_user_attr("record", stored)
            for name, excess in constraints.items():
                trial.set_constraint(name, excess)
            self._study.tell(trial, value, state=state)
        self._records[number] = record

    def _add(
        self,
        chosen: Chosen,
        record: Any,
        value: float | None,
        state: TrialState,
        constraints: dict[str, float],
    ) -> int:
        """Write a whole trial and return its number."""
        self._study.add_trial(
            create_trial(
                state=state,
                value=value,
                params=chosen.params,
                distributions=chosen.distributions,
                user_attrs={"record": record},
                constraints=constraints,
            )
        )
        return self._study.get_trials(deepcopy=False)[-1].number

    def tell_again(self, trial: Trial, record: TrialRecord) -> None:
        """Close a trial whose config already has a record; it is not recorded a second time.

        The sampler sees the known result again.

        Args:
            trial: The open trial.
            record: The record of the same config.
        """
        assert not isinstance(trial, Chosen), "the sampler proposed it"
        if record.speedup is None:
            self._study.tell(trial, state=TrialState.FAIL)
        else:
            self._study.tell(trial, math.log(record.speedup.low))

    def _set(self, name: str, value: Any) -> None:
        self._study.set_user_attr(name, _dump(type(value), value))


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
    """Turn what goes wrong with a record of another version of autotune into an error for users.

    Raises:
        RunDirectoryError: A field is missing, or has another form.
    """
    try:
        yield
    except ValidationError as error:
        fault = error.errors(include_url=False)[0]
        reason = f"{'.'.join(map(str, fault['loc']))}: {fault['msg']}"
        raise RunDirectoryError(_unreadable(storage, reason)) from error
    except KeyError as error:
        raise RunDirectoryError(_unreadable(storage, f"{error} is missing")) from error


def _read(kind: type[Value], raw: Any) -> Value:
    value: Value = _adapter(kind).validate_python(raw)  # type: ignore[arg-type]
    return value


def _dump(kind: Any, value: Any) -> Any:
    return _adapter(kind).dump_python(value, mode="json")
