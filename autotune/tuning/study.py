"""Study: the one place where a run is recorded, an Optuna study in the run directory or elsewhere.

Covered: everything that ``resume`` and reports need; a search that was killed at any moment; two
searches on one run. Not covered: two machines whose clocks or host names are equal by mistake.
"""

from __future__ import annotations

import math
import socket
from functools import cache
from typing import Any, TypeVar

import optuna
import psutil
from optuna.trial import Trial, TrialState
from pydantic import TypeAdapter

from autotune.errors import RunDirectoryError
from autotune.knobs.space.space import ResolvedSpace
from autotune.measurement.outcome import Outcome
from autotune.measurement.run_mode import RunMode
from autotune.program.config import Config
from autotune.program.rehearsal import RehearsalRecord
from autotune.results.former_names import with_present_names
from autotune.results.record import (
    FORMAT,
    BaselineInfo,
    Lease,
    SearchInfo,
    TrialRecord,
    WindowRecord,
)
from autotune.tuning.sampler import distributions, holding, make_sampler

__all__ = ["Study", "Trial"]

Value = TypeVar("Value")
Storage = str | optuna.storages.BaseStorage  # an URL, or what Optuna makes of one
MEMORY_OUTCOMES = {Outcome.OUT_OF_MEMORY, Outcome.HOST_OUT_OF_MEMORY, Outcome.SHARED_MEMORY}


class Study:
    """A run's record; all values in it are JSON of our own frozen dataclasses."""

    def __init__(self, study: optuna.Study, seed: int) -> None:
        self._study = study
        self._sampler = make_sampler(seed)
        # A record is written once and read before and after each trial: parsing all of them
        # again each time took half of a search's own time.
        self._records: dict[int, TrialRecord] = {}

    @classmethod
    def create(cls, storage: Storage, name: str, head: SearchInfo) -> Study:
        """Make a new study; raises optuna.exceptions.DuplicatedStudyError if the name is taken."""
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = cls(
            optuna.create_study(storage=storage, study_name=name, direction="maximize"),
            head.options.seed,
        )
        study._set("head", head)
        return study

    @classmethod
    def load(cls, storage: Storage, name: str) -> Study:
        """Open an existing study.

        Raises:
            RunDirectoryError: when there is none, or an autotune of another format wrote it.
        """
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        try:
            study = optuna.load_study(storage=storage, study_name=name, sampler=make_sampler(0))
        except KeyError as error:
            raise RunDirectoryError(
                f"There is no run '{name}' in {storage}. 'autotune search PROGRAM' starts one."
            ) from error
        version = (study.user_attrs.get("head") or {}).get("format")
        if version != FORMAT:
            raise RunDirectoryError(
                f"The run '{name}' was written in format {version}, this autotune reads {FORMAT}. "
                "Start a new search."
            )
        seed = _read(SearchInfo, study.user_attrs["head"]).options.seed
        return cls(study, seed + len(study.trials))  # a resumed sampler does not repeat its draws

    @property
    def head(self) -> SearchInfo:
        """What the run is about."""
        return _read(SearchInfo, self._study.user_attrs["head"])

    @property
    def facts(self) -> BaselineInfo | None:
        """What the untouched program gave, None until it has."""
        raw = self._study.user_attrs.get("facts")
        return None if raw is None else _read(BaselineInfo, raw)

    @facts.setter
    def facts(self, facts: BaselineInfo) -> None:
        self._set("facts", facts)

    @property
    def fence(self) -> str:
        """What kept the trials from changing files in the last session, empty before the first."""
        return str(self._study.user_attrs.get("fence", ""))

    @fence.setter
    def fence(self, sentence: str) -> None:
        self._study.set_user_attr("fence", sentence)

    @property
    def mode(self) -> RunMode:
        """What it takes for the program to train in a rig."""
        return _read(RunMode, self._study.user_attrs.get("mode", {}))

    @mode.setter
    def mode(self, mode: RunMode) -> None:
        self._set("mode", mode)

    @property
    def spent_s(self) -> float:
        """Wall time that searches on this run have used."""
        return float(self._study.user_attrs.get("spent_s", 0.0))

    @spent_s.setter
    def spent_s(self, seconds: float) -> None:
        self._study.set_user_attr("spent_s", seconds)

    @property
    def confirmation(self) -> list[list[WindowRecord]]:
        """The rounds of the confirmation, in order."""
        return _read(list[list[WindowRecord]], self._study.user_attrs.get("confirmation", []))

    def add_confirmation(self, windows: list[WindowRecord]) -> None:
        """Record one more round of the confirmation."""
        rounds = [*self.confirmation, windows]
        self._study.set_user_attr("confirmation", _dump(list[list[WindowRecord]], rounds))

    @property
    def rehearsals(self) -> list[RehearsalRecord]:
        """What was found out about configs beyond their training loops, in order."""
        raw = self._study.user_attrs.get("rehearsals", [])
        return _read(list[RehearsalRecord], raw)

    def add_rehearsal(self, record: RehearsalRecord) -> None:
        """Record what was found out about one more config."""
        records = [*self.rehearsals, record]
        self._study.set_user_attr("rehearsals", _dump(list[RehearsalRecord], records))

    @property
    def records(self) -> list[TrialRecord]:
        """The trials that were measured or failed, in order; the first is the baseline."""
        for trial in self._study.get_trials(deepcopy=False):
            if trial.number not in self._records and "record" in trial.user_attrs:
                self._records[trial.number] = _read(TrialRecord, trial.user_attrs["record"])
        return [self._records[number] for number in sorted(self._records)]

    def take_lease(self, *, force: bool = False) -> None:
        """Mark this run as worked on by this process, and clear up after one that died.

        Args:
            force: Take over a lease whose holder cannot be seen from here.

        Raises:
            RunDirectoryError: when another living process works on it.
        """
        raw = self._study.user_attrs.get("lease")
        lease = None if raw is None else _read(Lease, raw)
        own = Lease(socket.gethostname(), psutil.Process().pid, psutil.Process().create_time())
        if lease is not None and lease != own and _is_alive(lease) and not force:
            raise RunDirectoryError(
                f"Another autotune (process {lease.pid} on {lease.host}) works on this run. "
                "Wait for it or end it; if that machine or container is gone, take the run over: "
                "autotune resume --force"
            )
        self._set("lease", own)
        while any(t.state is TrialState.WAITING for t in self._study.get_trials(deepcopy=False)):
            self._study.ask()  # takes a waiting trial first: it runs now, and ends below
        for trial in self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
            self._study.tell(trial.number, state=TrialState.FAIL)

    def release_lease(self) -> None:
        """Mark this run as free."""
        self._study.set_user_attr("lease", None)

    def ask_for(self, config: Config, space: ResolvedSpace) -> Trial:
        """Return a trial of this very config."""
        self._study.enqueue_trial({n: config[n] for n in space.domains})
        return self._study.ask(distributions(space))

    def propose(self, space: ResolvedSpace, at: Config) -> tuple[Trial, Config]:
        """Return a trial that the sampler chose, with the restart knobs of *at*."""
        held = {n: at[n] for n in space.domains if n in space.restart}
        self._study.sampler = holding(self._sampler, held)
        trial = self._study.ask(distributions(space))
        return trial, space.canonical(at.replace(**trial.params))

    def tell(self, trial: Trial, record: TrialRecord) -> None:
        """Record how a trial ended.

        A measured trial is worth the logarithm of what its speedup surely is, the lower end of its
        interval: a disturbed window must not lead the sampler. Out of memory is an infeasible trial
        (pruned, with a violated constraint), so that the sampler keeps away from its neighbours;
        any other ending is a failed one, which it ignores.
        """
        trial.set_user_attr("record", _dump(TrialRecord, record))
        if record.measurement is not None and record.speedup is not None:
            self._study.tell(trial, math.log(record.speedup.low))
        elif record.outcome in MEMORY_OUTCOMES:
            trial.set_constraint("memory", 1.0)
            self._study.tell(trial, state=TrialState.PRUNED)
        else:
            self._study.tell(trial, state=TrialState.FAIL)

    def tell_again(self, trial: Trial, record: TrialRecord) -> None:
        """Close a trial whose config was measured before; it is not recorded a second time."""
        if record.speedup is None:
            self._study.tell(trial, state=TrialState.FAIL)
        else:
            self._study.tell(trial, math.log(record.speedup.low))

    def _set(self, name: str, value: Any) -> None:
        self._study.set_user_attr(name, _dump(type(value), value))


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def _read(kind: type[Value], raw: Any) -> Value:
    value: Value = _adapter(kind).validate_python(with_present_names(raw))  # type: ignore[arg-type]
    return value


def _dump(kind: Any, value: Any) -> Any:
    return _adapter(kind).dump_python(value, mode="json")


def _is_alive(lease: Lease) -> bool:
    if lease.host != socket.gethostname():
        return True  # what runs elsewhere cannot be seen from here
    try:
        return abs(psutil.Process(lease.pid).create_time() - lease.started) < 1.0
    except psutil.NoSuchProcess:
        return False
