"""``autotune search --workers N --executor …``: hand one line over N times, and watch the study.

The command that is typed here searches nothing itself. It checks what each member would be refused
for, so that nobody learns that from the queue of a cluster, and creates the study; then it prints a
line for each thing that changes there. Who is watched does not depend on who watches.
"""

from __future__ import annotations

import shutil
import socket
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from ipaddress import ip_address
from pathlib import Path
from shlex import quote
from time import sleep
from typing import TYPE_CHECKING

import typer

from autotune.cli import shared_study
from autotune.cli.exit_status import ExitStatus
from autotune.cli.messages import Messages
from autotune.errors import OutOfReachError, UsageError
from autotune.sharing.address import AddressKind

if TYPE_CHECKING:
    from autotune.cli.executors import Executor, Submission
    from autotune.program.sharing_options import SharingOptions
    from autotune.results.record import SearchInfo
    from autotune.sharing.standing import Observer, Standing
    from autotune.tuning.search_request import SearchRequest

REPLACED = ("--workers", "--executor", "--serve", "--storage")  # each takes a value


def show_manifest(
    executor: Executor, request: SearchRequest, line: Sequence[str], count: int
) -> None:
    """Print the manifest of an executor that starts nothing itself.

    Raises:
        UsageError: What is typed does not fit the study that the manifest holds.
    """
    if request.storage is not None or request.serve is not None:
        raise UsageError(
            f"--executor {executor.name} takes the storage from the secret that its manifest "
            "names: leave out --storage and --serve."
        )
    if request.name is None:
        raise UsageError(f"--executor {executor.name}: add --name NAME, which names the study.")
    sys.stdout.write(executor.submit(line, count).manifest)


def start(
    messages: Messages,
    head: SearchInfo,
    executor: Executor,
    line: Sequence[str],
    count: int,
    *,
    as_json: bool = False,
) -> None:
    """Create the study, start the members, and watch them until all have ended.

    Args:
        head: What they search, and in which study.
        line: Of one member, as words.
        as_json: Whether the end is printed as JSON.

    Raises:
        AutotuneError: They cannot be started, or would be refused.
    """
    from autotune.sharing.agreement import agreement_of
    from autotune.sharing.standing import Observer
    from autotune.tuning import joining
    from autotune.tuning.storage import search_dir

    sharing, agreement = head.options.sharing, agreement_of(head)
    if sharing is None:
        raise UsageError("The workers need a study: add --storage URL or --serve HOST:PORT.")
    if sharing.serves and executor.name != "local" and (host := _vague_host(sharing.storage)):
        messages.warn(
            f"Workers on other machines do not reach {host}. Name this machine as they know it: "
            f"--serve {socket.gethostname()}:PORT"
        )
    folder = search_dir.served(sharing.name) if sharing.serves else Path()
    status = ExitStatus.DONE

    def awaited() -> Collection[str]:  # jobs that wait in a queue have not joined yet
        return executor.unfinished() or ()

    with joining.served(sharing, folder, messages.warn, awaited):
        observer = Observer(joining.opened(joining.board_of(sharing), agreement, messages.warn))
        submission = executor.submit(line, count)
        is_server = sharing.storage.startswith(AddressKind.POSTGRESQL)
        if is_server and (note := executor.password_note()):
            messages.warn(note)
        ends = "the watching alone" if submission.outlives_us else "them, too"
        if sharing.serves and submission.outlives_us:
            ends = "the watching; the study is served until all workers have left"
        messages.note(f"Started: {', '.join(submission.handles)}. Ctrl-C ends {ends}.")
        try:
            found = watched(messages.note, observer, executor.unfinished)
        except KeyboardInterrupt:
            messages.warn(_instead(submission, sharing))
            status = ExitStatus.INTERRUPTED
        else:
            status = _told(messages, found, sharing.name, submission, as_json=as_json)
    if status:
        raise typer.Exit(status)


def watched(
    say: Callable[[str], None],
    observer: Observer,
    unfinished: Callable[[], Collection[str] | None],
    wait: Callable[[float], None] = sleep,
) -> Standing:
    """Say what changes in a study until all members have ended; return how it stands then.

    Args:
        unfinished: Returns those that their queue knows of, also of those that wait yet; None
            where it cannot be asked.
    """
    from autotune.sharing import liveness

    before: Standing | None = None
    is_cut = False
    while True:
        left = unfinished()
        try:
            now = observer.look()
        except OutOfReachError as error:
            if not is_cut:
                say(f"The study cannot be looked at now: {error}")
            is_cut = True
        else:
            if is_cut:
                say("The study can be looked at again.")
            for line in shared_study.changes(before, now):
                say(line)
            before, is_cut = now, False
            if now.is_over if left is None else not left:
                return now
        wait(liveness.BEAT_S)


def _vague_host(url: str) -> str:
    """Return the host of a URL that means another machine on each one; else empty."""
    host = url.partition("://")[2].rpartition(":")[0].strip("[]")
    try:
        address = ip_address(host)
    except ValueError:
        return host if host == "localhost" else ""
    return host if address.is_loopback or address.is_unspecified else ""


def _told(
    messages: Messages, found: Standing, name: str, submission: Submission, *, as_json: bool
) -> ExitStatus:
    """Print how a study has ended; return the status of the command."""
    if not found.members:
        messages.error(
            f"No worker has joined the study '{name}'. What they printed says why: "
            f"{', '.join(submission.handles)}"
        )
        return ExitStatus.REFUSED
    shared_study.show(found, name, as_json=as_json)
    has_answer = any(one.answer is not None for one in found.groups)
    return ExitStatus.DONE if has_answer else ExitStatus.NOTHING_MEASURED


def _instead(submission: Submission, sharing: SharingOptions) -> str:
    return (
        f"No longer watching. {submission.ending} To look again: autotune show --storage "
        f"{quote(sharing.storage)} --name {quote(sharing.name)}"
    ).replace("  ", " ")


def line_of(
    words: Sequence[str], program: Sequence[str], sharing: SharingOptions | None
) -> list[str]:
    """Return the line of one member: what was typed, with where the study is.

    Args:
        words: What stands after ``autotune search``.
        program: The program and its arguments, which end *words*.
        sharing: None for a member that finds the storage in its environment.
    """
    options = [*_without_values(words[: len(words) - len(program)])]
    where = [] if sharing is None else ["--storage", sharing.storage]
    return ["search", *where, *options, *program]


def _without_values(options: Sequence[str]) -> Iterator[str]:
    """Yield options without those that a member gets otherwise, and their values."""
    is_value = False
    for word in options:
        name, has_value, _ = word.partition("=")
        if is_value:
            is_value = False
        elif name in REPLACED:
            is_value = not has_value
        else:
            yield word


def this_command() -> list[str]:
    """Return the words that start this autotune on a machine with the same files."""
    started, found = Path(sys.argv[0]), shutil.which("autotune")
    if started.name == "__main__.py":
        return [sys.executable, "-m", "autotune"]
    is_usual = found is not None and started.exists() and Path(found).samefile(started)
    return ["autotune" if is_usual or not started.exists() else str(started.absolute())]
