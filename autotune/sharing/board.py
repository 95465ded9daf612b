"""Board: the shared Optuna study, as the members of a search read and write it.

    attribute agreement            what all agree on
    attribute member:<id>          what a member says of itself, written with each beat
    attribute result:<id>:<number> a result; the study has one value of each name
    trial                          a request for a right: a hand-out or an announcement

All members read all of it with each look. Rounds are most of it: those of a beat, which are some
five answers of a rig that compare four configs, have 0.7 kB of JSON with three knobs, and 1.0 kB
with twenty. So N members that race for an hour leave N x 0.37 MB, which each of their looks reads
again: 1.5 MB of 4 members, 6 MB of 16, 24 MB of 64. Each MB takes 0.1 to 0.3 s of a processor on a
shared 2-core machine, and what was read before is not parsed again. That is why looks may take a
tenth of the time at most (``courier``). A member makes two small writes and two reads in a beat.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from time import monotonic
from typing import TYPE_CHECKING, Any

from autotune.errors import AutotuneError, SharedStudyError
from autotune.program.config import Config
from autotune.sharing.agreement import disagreement
from autotune.sharing.entries import (
    Agreement,
    Member,
    Published,
    Request,
    RequestState,
    Right,
    Rounds,
    as_json,
    read,
)
from autotune.sharing.liveness import BEAT_S, Liveness
from autotune.sharing.snapshot import Snapshot
from autotune.sharing.store import Store

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

AGREEMENT, MEMBER, RESULT, VOID = "agreement", "member:", "result:", "void"


class Board:
    """A shared study; all methods raise what ``Store`` raises.

    Attributes:
        liveness: What this observer has seen of the members.
    """

    def __init__(
        self,
        store: Store,
        study_name: str,
        clock: Callable[[], float] = monotonic,
        beat_s: float = BEAT_S,
    ) -> None:
        self._store, self._name = store, study_name
        self.liveness = Liveness(clock, beat_s)
        self._study: int | None = None
        self._agreement: Agreement | None = None
        self._parsed: dict[str, tuple[Any, Any]] = {}  # by their names, with ``_mark``
        self._configs: dict[Config, Config] = {}  # a race has few, which fill many rounds

    def open(self, agreement: Agreement | None) -> None:
        """Create the study or join it; with None, only an existing one is read.

        Any number of members may do so at once.

        Raises:
            OutOfReachError: The storage cannot be reached now.
            SharedStudyError: There is none, or it searches something else: the message says what.
        """
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self._agreement = agreement
        self._study = self._found(is_made=agreement is not None)
        try:
            known = self._attributes()
            if agreement is not None and AGREEMENT not in known:
                self._write(AGREEMENT, as_json(agreement))
                known = self._attributes()  # of two that write at once, one stays
            self._check(known)
        except AutotuneError:
            self._study = None
            raise

    def _found(self, *, is_made: bool) -> int:
        from optuna.exceptions import DuplicatedStudyError
        from optuna.study import StudyDirection

        find = partial(self._store.get_study_id_from_name, self._name)
        try:
            return int(find())
        except KeyError as error:
            if not is_made:
                raise SharedStudyError(f"There is no shared study '{self._name}' there.") from error
        with suppress(DuplicatedStudyError):  # another one was faster
            return int(self._store.create_new_study([StudyDirection.MAXIMIZE], self._name))
        return int(find())

    @property
    def is_open(self) -> bool:
        """Whether the study was found, and its agreement is that of this member."""
        return self._study is not None

    def hang_up(self) -> None:
        """Close the connection until the next access."""
        with suppress(AutotuneError):
            self._store.remove_session()

    @property
    def _id(self) -> int:
        assert self._study is not None, "the study is open"
        return self._study

    @contextmanager
    def _while_it_exists(self) -> Iterator[None]:
        try:
            yield
        except KeyError as error:
            raise SharedStudyError(f"The shared study '{self._name}' was deleted.") from error

    def _attributes(self) -> dict[str, Any]:
        with self._while_it_exists():
            return dict(self._store.get_study_user_attrs(self._id))

    def _write(self, name: str, value: Any) -> None:
        with self._while_it_exists():
            self._store.set_study_user_attr(self._id, name, value)

    def _check(self, attributes: dict[str, Any]) -> Agreement | None:
        try:
            found: Agreement | None = read(Agreement, attributes[AGREEMENT])
        except (KeyError, ValueError):
            found = None
        mine = self._agreement
        if mine is None:
            return found
        if found is None:
            raise SharedStudyError(f"'{self._name}' is no study that autotune shares.")
        if differs := disagreement(self._name, found, mine):
            raise SharedStudyError(differs)
        return found

    def put(self, published: Published) -> None:
        """Write an entry; to write it once more changes nothing."""
        self._write(_name(published), published.as_json())

    def beat(self, member: Member) -> None:
        """Write what a member says of itself."""
        self._write(_name(member), as_json(member))

    def look(self) -> Snapshot:
        """Read everything.

        Raises:
            SharedStudyError: The study was deleted, or its agreement is not that of this member.
        """
        attributes = self._attributes()
        agreement = self._check(attributes)
        members, results = (
            [self._entry(kind, name, raw) for name, raw in sorted(attributes.items())
             if name.startswith(prefix)]
            for prefix, kind in ((MEMBER, partial(read, Member)), (RESULT, Published.read))
        )  # fmt: skip
        known = {one.id: one for one in members if one is not None}
        published = tuple(one for one in results if one is not None)
        dropped = members.count(None) + results.count(None)
        dead = self.liveness.look(known.values())
        return Snapshot(agreement, known, dead, published, self.requests(), dropped)

    def _entry(self, kind: Callable[[Any], Any], name: str, raw: Any) -> Any:
        before, mark = self._parsed.get(name), _mark(raw)
        if before is not None and before[0] == mark:
            return before[1]
        try:
            found = kind(raw)
        except ValueError:
            found = None
        # Each entry is that of the member in its name
        found = self._shared(found) if found is not None and _name(found) == name else None
        self._parsed[name] = mark, found
        return found

    def _shared(self, found: Any) -> Any:
        if not isinstance(found, Published) or not isinstance(found.entry, Rounds):
            return found
        played = found.entry.played
        configs = tuple(self._configs.setdefault(one, one) for one in played.configs)
        return replace(found, entry=Rounds(replace(played, configs=configs)))

    def requests(self) -> tuple[Request, ...]:
        """Read the requests alone."""
        with self._while_it_exists():
            trials = self._store.get_all_trials(self._id, deepcopy=False)
        return tuple(one for trial in trials if (one := _request(trial)) is not None)

    def request(self, request: Request) -> None:
        """Write a request; whether it has the right, the next look at all of them says."""
        from optuna.trial import TrialState, create_trial

        is_open = request.right is Right.TRY
        trial = create_trial(
            state=TrialState.RUNNING if is_open else TrialState.COMPLETE,
            value=None if is_open else 0.0,
            user_attrs={
                "kind": str(request.right),
                "name": request.name,
                "member": request.member,
                "process": request.process,
                "group": request.group,
                "turn": request.turn,
                "value": as_json(request.config),
            },
        )
        with self._while_it_exists():
            self._store.create_new_trial(self._id, trial)

    def close(self, request: Request, state: RequestState) -> None:
        """Close an open request; one that another member has closed before stays as it is."""
        from optuna.exceptions import UpdateFinishedTrialError
        from optuna.trial import TrialState

        is_done = state is RequestState.DONE
        trial_state = TrialState.COMPLETE if is_done else TrialState.FAIL
        with self._while_it_exists(), suppress(UpdateFinishedTrialError):
            if state is RequestState.VOID:
                self._store.set_trial_user_attr(request.trial_id, VOID, value=True)
            values = [0.0] if is_done else None
            self._store.set_trial_state_values(request.trial_id, trial_state, values)


def _name(entry: Member | Published) -> str:
    if isinstance(entry, Member):
        return f"{MEMBER}{entry.id}"
    return f"{RESULT}{entry.member}:{entry.number:06d}"


def _mark(raw: Any) -> Any:
    """Return what changes when an entry does: rounds may grow until they are delivered."""
    match raw:
        case {"entry": {"turns": [*turns]}}:
            return len(turns)
        case {"entry": _}:
            return True
    return raw


def _request(trial: FrozenTrial) -> Request | None:
    from optuna.trial import TrialState

    its = trial.user_attrs
    state = {
        TrialState.RUNNING: RequestState.HELD,
        TrialState.COMPLETE: RequestState.DONE,
        TrialState.FAIL: RequestState.LOST,
    }.get(trial.state)
    is_void = bool(its.get(VOID)) and state is not RequestState.DONE
    raw = {
        "right": its.get("kind"),
        **{name: its.get(name) for name in ("turn", "member", "process", "group")},
        "config": its.get("value"),
        "state": RequestState.VOID if is_void else state,
        "number": trial.number,
        "is_open": not trial.state.is_finished(),
        "trial_id": trial._trial_id,  # noqa: SLF001 - Optuna's storages take it, no public name has it
    }
    try:
        found: Request = read(Request, raw)
    except ValueError:
        return None
    return found
