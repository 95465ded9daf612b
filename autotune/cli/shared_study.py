"""A shared study from outside: ``autotune show --storage``, and what ``--workers`` watches.

Both read and join nothing. What stands in a study was written by its members, so all of it is
printed as text that does not steer the terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from rich.text import Text

from autotune.cli.failure_screen import printable
from autotune.cli.stdout import print_json, results_console, table
from autotune.program.config import Config
from autotune.results.finding import Finding
from autotune.results.verdict import changes_of
from autotune.results.wording import bounds, factor, printed

if TYPE_CHECKING:
    from autotune.sharing.standing import GroupStanding, Observer, Standing

HEADS = ("member", "is", "does", "machine")
LOOKS_A_BEAT = 4


def observer_of(storage: str | None, name: str | None) -> Observer:
    """Return who looks at a study that exists.

    Raises:
        UsageError: It is not said which, or the library that reads it is not installed.
        OutOfReachError: Its storage cannot be reached now.
        SharedStudyError: It refuses, or holds no such study.
    """
    from autotune.errors import UsageError
    from autotune.sharing.standing import Observer
    from autotune.tuning.joining import board_of
    from autotune.tuning.search_request import sharing_of

    sharing = sharing_of(storage, None, name)
    if sharing is None:
        raise UsageError("--name is of a shared study: add --storage URL. A search is shown by "
                         "its name alone: autotune show NAME")  # fmt: skip
    board = board_of(sharing)
    board.open(None)
    return Observer(board)


def has_answer(storage: str | None, name: str | None) -> bool:
    """Return whether a study was answered, and all its members have left.

    False for a study that cannot be read: who joins it is told why.
    """
    from autotune.errors import AutotuneError

    try:
        found = observer_of(storage, name).look()
    except AutotuneError:
        return False
    return found.is_over and any(one.answer is not None for one in found.groups)


def looked_at(
    observer: Observer,
    beat_s: float,
    clock: Callable[[], float] = monotonic,
    wait: Callable[[float], None] = sleep,
) -> Standing:
    """Return what a study stands at, once each member was seen to beat, or has had the time to.

    Args:
        beat_s: Seconds between two beats of a member.
    """
    from autotune.sharing.standing import Life

    until_s = clock() + 1.5 * beat_s
    while True:
        found = observer.look()
        if clock() >= until_s or all(one.life is not Life.QUIET for one in found.members):
            return found
        wait(beat_s / LOOKS_A_BEAT)


def show(found: Standing, name: str, *, as_json: bool = False) -> None:
    """Print what a study stands at."""
    if as_json:
        print_json({"study": name, **_as_data(found)})
        return
    out = results_console()
    out.print(Text(f"{name}: {printable(found.program)}", style="bold"))
    if not found.members:
        out.print(Text("  Nobody has joined it yet."))
        return
    rows = [
        (one.host, one.life, "" if one.has_ended else one.phase, one.machine)
        for one in found.members
    ]
    out.print(table([[printable(str(cell)) for cell in row] for row in rows], HEADS))
    for group in found.groups:
        out.print()
        out.print(Text(printable(_title(group)), style="bold"))
        out.print(table([(label, printable(said)) for label, said in _rows(group)]))


def changes(before: Standing | None, now: Standing) -> Iterator[str]:
    """Yield a line for each thing that is new since an earlier look; None for the first one."""
    from autotune.sharing.standing import Life

    known = {} if before is None else {one.id: one for one in before.members}
    for one in now.members:
        was = known.get(one.id)
        if was is None:
            yield f"{one.host} has joined"
        if one.has_ended and (was is None or was.life is not one.life):
            gone = "; what it had in hand goes to others" if one.life is Life.GONE else ""
            yield f"{one.host} {'is' if one.life is Life.GONE else 'has'} {one.life}{gone}"
        elif not one.has_ended and one.phase and (was is None or was.phase != one.phase):
            yield f"{one.host}: {one.phase}"
    groups = {} if before is None else {one.group: one for one in before.groups}
    for group in now.groups:
        yield from _news(groups.get(group.group), group)


def _news(before: GroupStanding | None, now: GroupStanding) -> Iterator[str]:
    told = {} if before is None else dict(_rows(before))
    for label, said in _rows(now):
        if label in NEWS and told.get(label) != said:
            yield f"{label}: {said} ({now.machine})"


NEWS = ("announced", "claim", "refused", "answer")


def _title(group: GroupStanding) -> str:
    count = len(group.hosts)
    return f"{group.machine}: {count} machine{'s' * (count != 1)} ({', '.join(group.hosts)})"


def _rows(group: GroupStanding) -> Iterator[tuple[str, str]]:
    yield "rounds", f"{group.rounds:,}"
    if group.tried or group.hand_outs:
        held = [
            f"{one.host} has {_named(one.config, group)}"
            for one in group.hand_outs
            if one.state == "held"
        ]
        lost = sum(one.state == "lost" for one in group.hand_outs)
        said = [f"{lost} lost with their machine"] if lost else []
        yield "fresh processes", "; ".join([f"{group.tried} tried", *held, *said])
    if group.announced is not None:
        yield "announced", f"{_named(group.announced, group)}, by {group.announced_by}"
    if group.claims:
        counts = (f"{count} on {host}" for host, count in sorted(group.claims.items()))
        yield "claim", f"fresh processes: {', '.join(counts)}"
    if group.refusals:
        yield (
            "refused",
            "; ".join(
                f"{_named(one.config, group)} by {one.host}: {one.why}" for one in group.refusals
            ),
        )
    if group.answer is not None:
        yield "answer", _answer(group)


def _answer(group: GroupStanding) -> str:
    answer = group.answer
    assert answer is not None
    on = f"measured on {', '.join(answer.machines)}"
    if answer.speedup is None or answer.finding is not Finding.FASTER:
        return f"{answer.finding}; {on}"
    low, high = bounds(printed(answer.speedup))
    return (
        f"{factor(answer.speedup)} with {_named(answer.config, group)} (95 % between {low} and "
        f"{high}); {on}"
    )


def _named(config: Config, group: GroupStanding) -> str:
    """Return what a config changes, or all of it where the program's own is not known yet."""
    return changes_of(config, group.as_written) or "as written"


def _as_data(found: Standing) -> dict[str, Any]:
    from pydantic import TypeAdapter

    data: dict[str, Any] = _plain(TypeAdapter(type(found)).dump_python(found, mode="json"))
    return data


def _plain(data: Any) -> Any:
    """Return data in which a config is its settings."""
    if isinstance(data, list):
        return [_plain(one) for one in data]
    if not isinstance(data, dict):
        return data
    settings = data.get("values_by_knob")
    return {name: _plain(one) for name, one in data.items()} if settings is None else settings
