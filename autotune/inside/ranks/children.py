"""Children: the processes that the program starts itself, where they train in place of this one.

The rig's first process keeps the wire. The first child that makes a step, and those that start
together with it, train in its place: their leader's messages are handed on to the parent, and the
parent's to it. A second training that begins after the first one ended is left to 'autotune run'.
"""

from __future__ import annotations

import json
import os
import queue
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import monotonic, sleep, time
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from autotune.inside.ranks.child_rank import Act, Bystander, Part, Place, Training
from autotune.inside.ranks.forks import PATIENCE_S, ForkTrainingError
from autotune.inside.ranks.group import served_store
from autotune.inside.ranks.rank_process import quit_process
from autotune.inside.seams.started import PROCESS, Script, StartedSeam, Starting
from autotune.inside.standstill import waits_for_processes
from autotune.rig.local_ranks import LOOPBACK, OURS
from autotune.rig.wire import (
    Close,
    Doubted,
    Ended,
    Link,
    LinkClosed,
    Message,
    Progress,
    Ready,
    Start,
    ToRig,
    encode,
)

if TYPE_CHECKING:
    from autotune.inside.short_epochs import ShortEpochs
    from autotune.inside.step_tracker import StepTracker

PART = f"{OURS}PART"  # in the environment of a script that the program starts again
POLL_S = 0.1
ENDING_S = 1.0  # for a rank whose end was seen at its connections
TUNED_ALONE = (
    "The program trains in a process that it starts itself (multiprocessing.Process). Of several "
    "that train one after another, this first one is tuned; 'autotune run' applies the config to "
    "each of them."
)


class Children:
    """Takes the processes that the program starts into the rig.

    The seam calls it where a process is about to start, in the program's own thread; a thread per
    child that may lead hands on what that one says, and one hands on what the parent wants.

    Args:
        link: To the parent.
        commands: What the parent sends, read from the link by another thread.
        start: What it said first.
        started: When this process began, by ``perf_counter``.
        listener: Who looks after the program in this process.
        shared: The rig's folder.
    """

    def __init__(
        self,
        link: Link,
        commands: queue.SimpleQueue[ToRig],
        start: Start,
        started: float,
        listener: StepTracker | ShortEpochs,
        shared: Path,
    ) -> None:
        self._link = link
        self._commands = commands
        self._start = start
        self._started = started
        self._listener = listener
        self._shared = shared
        self._helpers = (os.getppid(), os.getpid())
        self._place: Place | None = None  # where those meet that start now
        self._store: Any = None
        self._ours: socket.socket | None = None  # the ends of the wire to the child that starts
        self._theirs: socket.socket | None = None
        self._processes: list[tuple[int, BaseProcess]] = []
        self._scripts: list[tuple[int, subprocess.Popen[Any]]] = []
        self._relays: list[threading.Thread] = []
        self._turn = threading.Lock()
        self._leads: Link | None = None
        self._seam = StartedSeam(self)

    def install(self) -> None:
        """Begin to look at what the program starts."""
        self._seam.install()

    def process_starts(self, starting: Starting, act: Act) -> Act | None:
        """Return what runs in a process: a part in the rig, a look at its steps, or its own act."""
        is_alone = starting.by == PROCESS
        if starting.rank == 0 and self._has_led:
            return self._begins_after(starting)
        if starting.pools or (is_alone and self._has_living):
            return None if starting.forks else Bystander(act, self._channel())
        wire = self._channel() if starting.rank == 0 else None
        return Training(act, self._part(starting), wire, self._leave)

    def process_started(self, starting: Starting, process: BaseProcess, act: Act) -> None:
        """Listen to a process that has started."""
        is_rank = isinstance(act, Training)
        if is_rank:
            self._processes.append((starting.rank, process))
        if self._ours is None:
            return
        assert self._theirs is not None, "both ends are made together"
        self._theirs.close()  # the process has it: where that one ends, nobody holds it
        link, self._ours = Link(self._ours), None
        hear = self._relay if is_rank else self._hear_bystander
        self._relays.append(threading.Thread(target=hear, args=(link, starting), daemon=True))
        self._relays[-1].start()

    def script_starts(self, starting: Starting, args: Sequence[str]) -> Script | None:
        """Return the command of a script that is a rank beside this process."""
        if self._listener.steps or self._has_led:
            return None
        part = self._part(starting)
        if not self._scripts:
            assert self._place is not None, "a part has a place"
            self._listener.take_ranks(replace(self._place, rank=0).group())
            threading.Thread(target=self._watch_scripts, daemon=True).start()
        env = {PART: TypeAdapter(Part).dump_json(part).decode()}
        return Script((sys.executable, "-P", "-m", "autotune.inside.ranks.script_rank", *args), env)

    def script_started(self, starting: Starting, process: subprocess.Popen[Any]) -> None:
        """Remember a script, to tell how it ended."""
        self._scripts.append((starting.rank, process))

    def finish(self, *, has_failed: bool = False) -> None:
        """Hand on what children said last, and leave word of the exit codes of those that failed.

        Args:
            has_failed: So has this process, maybe because one of them does: it may yet be ending.
        """
        for _, script in self._scripts if has_failed else ():
            with suppress(subprocess.TimeoutExpired):
                script.wait(ENDING_S)
        if not self._has_living:
            for relay in self._relays:
                relay.join(ENDING_S)
        self._note_codes()

    def _note_codes(self) -> None:
        codes = [(rank, process.exitcode) for rank, process in self._processes]
        codes += [(rank, process.poll()) for rank, process in self._scripts]
        failed = {str(rank): code for rank, code in codes if code}
        if failed:
            part = self._shared / "codes.part"
            with suppress(OSError):  # the rig's folder has gone, and with it who wanted to know
                part.write_text(json.dumps(failed), encoding="utf-8")
                part.replace(self._shared / "codes")

    @property
    def _has_led(self) -> bool:
        """A child leads, or did."""
        return self._leads is not None

    @property
    def _has_living(self) -> bool:
        """A child that was taken in runs."""
        return any(process.is_alive() for _, process in self._processes)

    def _begins_after(self, starting: Starting) -> Act | None:
        """Another training begins beside or after the one that is measured."""
        if self._has_living or starting.pools:
            return None
        self.finish()  # the first one has ended, and with it what can be measured
        with suppress(LinkClosed):
            self._link.send(Ended(0, "", "", 0, at_s=time()))
        quit_process()

    def _channel(self) -> socket.socket:
        self._ours, self._theirs = socket.socketpair()
        return self._theirs

    def _part(self, starting: Starting) -> Part:
        if self._place is None or starting.rank == 0 or starting.ranks != self._place.ranks:
            self._place = self._new_place(starting)
        return Part(
            replace(self._place, rank=starting.rank),
            encode(self._start).decode(),
            str(self._shared),
            self._started,
            self._listener.seams.flags.all(),
            dict(self._listener.config_reads),
        )

    def _new_place(self, starting: Starting) -> Place:
        if starting.ranks == 1:
            return Place(0, 1, starting.by, helpers=self._helpers)
        if self._store is None:
            listener = socket.create_server((LOOPBACK, 0), backlog=1024)
            port = listener.getsockname()[1]
            self._store = served_store(port, listener.detach())
        name, key = secrets.token_hex(8), secrets.token_hex(32)
        return Place(0, starting.ranks, starting.by, self._store.port, key, name, self._helpers)

    def _leave(self) -> None:
        """In a copy of this process: what watches over this one is gone."""
        self._seam.remove()
        self._listener.seams.remove()

    def _relay(self, child: Link, starting: Starting) -> None:
        """Hand on what a child says, from its first step on; a thread of its own."""
        with suppress(LinkClosed):
            for message in child.messages():
                if child is not self._leads and not isinstance(message, Doubted):
                    if _is_before_first_step(message):
                        continue
                    if not self._hand_over(child, starting):
                        child.send(Close())  # it goes on unmeasured
                        break
                self._link.send(self._with_downloads(message))
            for _ in child.messages():
                pass  # a child whose wire is closed ends

    def _hand_over(self, child: Link, starting: Starting) -> bool:
        """Let a child lead that has made a step; not where this process trains itself."""
        with self._turn:
            if self._listener.steps or self._has_led:
                return False
            self._leads = child
        self._listener.stand_aside()
        if starting.by == PROCESS and self._start.setting is None:
            self._link.send(Doubted(TUNED_ALONE))
        threading.Thread(target=self._hand_down, args=(child,), daemon=True).start()
        return True

    def _hand_down(self, child: Link) -> None:
        """Hand on what the parent wants; a thread of its own."""
        while not isinstance(command := self._commands.get(), Close):
            with suppress(LinkClosed):  # the child has gone; how is said where the program ends
                child.send(command)
        quit_process()

    def _with_downloads(self, message: Message) -> Message:
        """Add to what a child says of downloads those that were made in this process."""
        if not isinstance(message, Ready):
            return message
        places = {*message.downloaded_to, *self._listener.seams.downloads.places}
        return replace(message, downloaded_to=tuple(sorted(places)))

    def _hear_bystander(self, child: Link, _: Starting) -> None:
        """End a program that trains in several processes at once, each by itself."""
        with suppress(LinkClosed):
            if child.receive() is None:
                return
            until = monotonic() + PATIENCE_S
            while not self._listener.steps:
                if monotonic() > until or waits_for_processes():
                    self._link.send(Ended(0, ForkTrainingError.__name__, "", 1, at_s=time()))
                    quit_process()
                sleep(POLL_S)

    def _watch_scripts(self) -> None:
        """Tell at once how a rank ended: its launcher may end this process for it."""
        while not any(process.poll() for _, process in self._scripts):
            sleep(POLL_S)
        self._note_codes()


def _is_before_first_step(message: Message) -> bool:
    """Tell whether a child says no more than that it runs."""
    match message:
        case Progress("start-up", steps=0):
            return True
    return False
