"""Joining: how a search becomes a member of a shared study, and how it is left.

Before anything is measured, the host's cores are locked, the study is created or found, and what
all have agreed on is compared. A member that serves the study goes on with that after its own
search, until nobody uses it.
"""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from time import monotonic, sleep
from typing import TYPE_CHECKING

from autotune.errors import AutotuneError, OutOfReachError
from autotune.machine import host_lock
from autotune.program.sharing_options import SharingOptions
from autotune.sharing import liveness, proxy
from autotune.sharing.address import Address
from autotune.sharing.agreement import agreement_of
from autotune.sharing.board import Board
from autotune.sharing.courier import Pace
from autotune.sharing.entries import Agreement
from autotune.sharing.joined import member_of
from autotune.sharing.membership import ALONE, Membership
from autotune.sharing.standing import Observer
from autotune.sharing.store import open_store
from autotune.tuning.events import Events

if TYPE_CHECKING:
    from autotune.results.record import SearchInfo

SERVED = "shared.db"  # the file of a study that is served, in the folder of who serves it
# As long as the members of a job that start at once may need to be let in, one after the other: a
# server of PostgreSQL takes 100 connections by default and has started again within seconds
OPENING_S = 60.0
PAUSE_S = 5.0  # the longest between two tries to open a study


def board_of(sharing: SharingOptions, clock: Callable[[], float] = monotonic) -> Board:
    """Return the board of a study, which is not open yet.

    Raises:
        UsageError: The address is none, or the library that talks to it is not installed.
    """
    return Board(open_store(Address.parse(sharing.storage)), sharing.name, clock, liveness.BEAT_S)


def opened(
    board: Board,
    agreement: Agreement,
    warn: Callable[[str], None],
    clock: Callable[[], float] = monotonic,
    wait: Callable[[float], None] = sleep,
) -> Board:
    """Open a study, which is created if it does not exist, by whoever comes first.

    Out of reach, it is tried again for a minute, which is said.

    Raises:
        OutOfReachError: Its storage could not be reached for a minute.
        SharedStudyError: It refuses, or the study searches something else.
    """
    until_s, told = clock() + OPENING_S, False
    while True:
        try:
            board.open(agreement)
        except OutOfReachError as error:
            if clock() >= until_s:
                raise
            if not told:
                warn(f"Trying again for {OPENING_S:.0f} s: {error}")
                told = True
            wait(PAUSE_S * random.random())  # so that not all come back at once
        else:
            return board


@contextmanager
def served(
    sharing: SharingOptions,
    folder: Path,
    warn: Callable[[str], None],
    awaited: Callable[[], Collection[str]] = tuple,
) -> Iterator[None]:
    """Serve a study from a file in a folder, where this search does; until nobody uses it.

    Left by an exception, it ends at once: others measure on and deliver when it is back.

    Args:
        awaited: Returns who may join it yet, such as jobs in a queue.

    Raises:
        UsageError: The port is in use, the address is not this machine's, or the library is not
            installed.
    """
    if not sharing.serves:
        yield
        return
    host, _, port = Address.parse(sharing.storage).where.rpartition(":")
    host = host.strip("[]")
    from autotune.tuning.storage.record_storage import ServedStorage

    with ExitStack() as ending:
        storage = ending.enter_context(closing(ServedStorage(folder / SERVED)))
        ending.enter_context(proxy.serve(storage, host, int(port)))
        if warning := proxy.warning(host):
            warn(warning)
        # As in a search, also where it is ignored: behind the '&' of a script
        if threading.current_thread() is threading.main_thread():
            before = signal.signal(signal.SIGINT, signal.default_int_handler)
            ending.callback(signal.signal, signal.SIGINT, before or signal.SIG_DFL)
        yield
        serve_on(Board(storage, sharing.name), sharing, warn, awaited=awaited)


def serve_on(
    board: Board,
    sharing: SharingOptions,
    warn: Callable[[str], None],
    wait: Callable[[float], None] = sleep,
    awaited: Callable[[], Collection[str]] = tuple,
) -> None:
    """Wait until all members of a study, and who is awaited, have left, or until Ctrl-C."""
    told = False
    try:
        board.open(None)
        observer = Observer(board)
        while here := observer.look().here or awaited():
            if not told:
                warn(
                    f"Serving the study '{sharing.name}' at {sharing.storage} until the last "
                    f"member has left ({', '.join(here)}); Ctrl-C ends that."
                )
                told = True
            wait(liveness.BEAT_S)
    except KeyboardInterrupt:
        warn(
            "The study is no longer served. Its members measure on, each for itself; what they "
            "have found is delivered when it is served again: by 'autotune resume', or by the same "
            "line with --workers."
        )
    except AutotuneError as error:  # its own result is safe
        warn(f"The study is no longer served: {error}")


@contextmanager
def joined(
    run: Path,
    head: SearchInfo,
    events: Events,
    clock: Callable[[], float] = monotonic,
    *,
    resumes: bool = False,
) -> Iterator[Membership]:
    """Provide the membership of a search, or ``ALONE`` where it shares nothing.

    Args:
        run: The folder of the search.
        resumes: Whether it was a member before, which goes on also if the study is out of reach.

    Raises:
        UsageError: Another member measures on this host, or what is served or needed is missing.
        OutOfReachError: The storage cannot be reached.
        SharedStudyError: It refuses, or the study searches something else.
    """
    sharing = head.options.sharing
    if sharing is None:
        yield ALONE
        return
    agreement, gpus = agreement_of(head), [gpu.uuid for gpu in head.hardware.gpus]
    # The host is free for others as soon as nothing is measured here
    with served(sharing, run, events.warn), host_lock.held(gpus):
        board = board_of(sharing, clock)
        try:
            board.open(agreement) if resumes else opened(board, agreement, events.warn)
        except OutOfReachError as error:
            if not resumes:
                raise
            events.warn(f"The study '{sharing.name}' is joined again once it can be: {error}")
        yield member_of(board, agreement, run, Pace(clock, liveness.BEAT_S))
