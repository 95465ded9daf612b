"""The processes that the program itself starts, if they train instead of the rig's first process.

The rig's first process keeps the connection to the parent. The first child process that makes an
optimizer step, together with those that started with it, trains in its place: messages are relayed
between their rank 0 and the parent. If a second training begins after the first one has ended, only
the first is measured; ``autotune run`` applies the config to both.
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

from autotune.inside.code.standstill import waits_for_processes
from autotune.inside.ranks.child_rank import Act, Bystander, Part, Place, Training
from autotune.inside.ranks.forks import PATIENCE_S, ForkTrainingError
from autotune.inside.ranks.group import served_store
from autotune.inside.ranks.rank_process import quit_process
from autotune.inside.seams.started import PROCESS, Script, StartedSeam, Starting
from autotune.rig.link import Link, LinkClosed
from autotune.rig.local_ranks import LOOPBACK, OURS
from autotune.rig.wire import Close, Ended, Message, Progress, Ready, Start, ToRig, Warned, encode

if TYPE_CHECKING:
    from autotune.inside.short_epochs import ShortEpochs
    from autotune.inside.step_tracker import StepTracker

PART = f"{OURS}PART"  # environment variable for a script that the program starts again as a rank
POLL_S = 0.1
ENDING_S = 1.0  # wait for a rank that has closed its connections but may still be ending
TUNED_ALONE = (
    "The program trains in a process that it starts itself (multiprocessing.Process). Of several "
    "that train one after another, this first one is tuned; 'autotune run' applies the config to "
    "each of them."
)


class Children:
    """Takes the processes that the program starts into the rig.

    The rig's first process creates it before the program runs. ``StartedSeam`` calls it when a
    process is about to start or has started, on the program's own thread. It starts one thread per
    child that may lead, which relays that child's messages to the parent, and one that relays the
    parent's commands.

    Args:
        link: To the parent.
        commands: The parent's commands, which another thread reads from the link.
        start: The parent's first message.
        started: When this process began, by ``perf_counter``.
        listener: The listener of the seams in this process.
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
        self._place: Place | None = None  # of the ranks that are being started now
        self._store: Any = None
        self._ours: socket.socket | None = None  # ends of a starting child's wire
        self._theirs: socket.socket | None = None
        # ranks with their processes, for the exit codes
        self._processes: list[tuple[int, BaseProcess]] = []
        self._scripts: list[tuple[int, subprocess.Popen[Any]]] = []
        self._relays: list[threading.Thread] = []
        self._turn = threading.Lock()
        self._leads: Link | None = None
        self._seam = StartedSeam(self)

    def install(self) -> None:
        """Begin to watch the processes and scripts that the program starts."""
        self._seam.install()

    def process_starts(self, starting: Starting, act: Act) -> Act | None:
        """Return what a process runs in place of its target.

        Returns:
            A ``Training`` for a process that may train, a ``Bystander`` for one that is only
            watched, or None if the process is to run its target unchanged. Forked processes need no
            ``Bystander``, because ``ForkGuard`` hears from those that train.
        """
        is_alone = starting.by == PROCESS
        if starting.rank == 0 and self._has_led:
            return self._begins_after(starting)
        # A pool's workers run whatever they are handed later, and a further single process need not
        # belong to the training of the one that is alive. Both are only watched.
        if starting.pools or (is_alone and self._has_living):
            return None if starting.forks else Bystander(act, self._channel())
        wire = self._channel() if starting.rank == 0 else None
        return Training(act, self._part(starting), wire, self._leave)

    def process_started(self, starting: Starting, process: BaseProcess, act: Act) -> None:
        """Begin to listen to a process that has started, if it has a connection to this one.

        Rank 0 and bystanders have one; the other ranks have not.
        """
        is_rank = isinstance(act, Training)
        if is_rank:
            self._processes.append((starting.rank, process))
        if self._ours is None:
            return
        assert self._theirs is not None, "both ends are made together"
        self._theirs.close()  # then the connection closes when the child ends
        link, self._ours = Link(self._ours), None
        hear = self._relay if is_rank else self._hear_bystander
        self._relays.append(threading.Thread(target=hear, args=(link, starting), daemon=True))
        self._relays[-1].start()

    def script_starts(self, starting: Starting, args: Sequence[str]) -> Script | None:
        """Return the command that runs the program's script again as a further rank.

        None leaves the script as it is, because this process has already made steps or a child
        leads. This process becomes rank 0 of the group.
        """
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
        """Remember a script, so that its exit code can be reported."""
        self._scripts.append((starting.rank, process))

    def finish(self, *, has_failed: bool = False) -> None:
        """Relay the children's last messages, and note the exit codes of those that failed.

        Args:
            has_failed: This process has failed. The cause may be a child that is just ending, so
                scripts get a moment to end and show their exit code.
        """
        for _, script in self._scripts if has_failed else ():
            with suppress(subprocess.TimeoutExpired):
                script.wait(ENDING_S)
        if not self._has_living:
            for relay in self._relays:
                relay.join(ENDING_S)
        self._note_codes()

    def _note_codes(self) -> None:
        """Write failed children's exit codes, by rank, to the file ``codes`` in the rig's folder.

        They are in the order of the ranks: nobody saw which failed first. The parent reads the
        file after the rig has ended.
        """
        codes = [(rank, process.exitcode) for rank, process in self._processes]
        codes += [(rank, process.poll()) for rank, process in self._scripts]
        failed = {str(rank): code for rank, code in codes if code}
        if failed:
            part = self._shared / "codes.part"
            with suppress(OSError):  # the rig and its folder may be gone already
                part.write_text(json.dumps(failed), encoding="utf-8")
                part.replace(self._shared / "codes")

    @property
    def _has_led(self) -> bool:
        """Whether a child leads, or has led before it ended."""
        return self._leads is not None

    @property
    def _has_living(self) -> bool:
        """Whether a child that takes part in the rig is still running."""
        return any(process.is_alive() for _, process in self._processes)

    def _begins_after(self, starting: Starting) -> Act | None:
        """Handle a training that begins during or after the one that is measured.

        While the first one runs, the new process is left alone, and so is a pool. Otherwise the
        measurement ends here, and with it this process.
        """
        if self._has_living or starting.pools:
            return None
        self.finish()  # only the first training is measured, and it has ended
        with suppress(LinkClosed):
            self._link.send(Ended(0, "", "", 0, at_s=time()))
        quit_process()

    def _channel(self) -> socket.socket:
        """Make a connection to the child that is about to start, and return the child's end."""
        self._ours, self._theirs = socket.socketpair()
        return self._theirs

    def _part(self, starting: Starting) -> Part:
        """Return what a new rank needs; the first rank of each group gets a new place to meet."""
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
        """Return a meeting place with a fresh name and key; several ranks also get a store."""
        if starting.ranks == 1:
            return Place(0, 1, starting.by, helpers=self._helpers)
        # one store serves all groups; their names keep their entries apart
        if self._store is None:
            listener = socket.create_server((LOOPBACK, 0), backlog=1024)
            port = listener.getsockname()[1]
            self._store = served_store(port, listener.detach())
        name, key = secrets.token_hex(8), secrets.token_hex(32)
        return Place(0, starting.ranks, starting.by, self._store.port, key, name, self._helpers)

    def _leave(self) -> None:
        """Remove the seams in a forked copy of this process, which installs seams for itself."""
        self._seam.remove()
        self._listener.seams.remove()

    def _relay(self, child: Link, starting: Starting) -> None:
        """Relay a child's messages to the parent from its first step on; one thread per child.

        Messages from before the first step are dropped, except warnings: until then another process
        may turn out to be the one that trains.
        """
        with suppress(LinkClosed):
            for message in child.messages():
                if child is not self._leads and not isinstance(message, Warned):
                    if _is_before_first_step(message):
                        continue
                    if not self._hand_over(child, starting):
                        child.send(Close())  # the child then trains on without being measured
                        break
                self._link.send(self._with_downloads(message))
            for _ in child.messages():
                pass  # keep reading: a child ends itself when its connection closes

    def _hand_over(self, child: Link, starting: Starting) -> bool:
        """Let a child that has made a step lead, and return whether it does.

        Only one child may lead, and none if this process makes steps itself.
        """
        with self._turn:
            if self._listener.steps or self._has_led:
                return False
            self._leads = child
        self._listener.stand_aside()
        if starting.by == PROCESS and self._start.applied is None:
            self._link.send(Warned(TUNED_ALONE))
        threading.Thread(target=self._hand_down, args=(child,), daemon=True).start()
        return True

    def _hand_down(self, child: Link) -> None:
        """Relay the parent's commands to the leading child until the parent closes; on a thread."""
        while not isinstance(command := self._commands.get(), Close):
            with suppress(LinkClosed):  # it has ended; finish() reports how
                child.send(command)
        quit_process()

    def _with_downloads(self, message: Message) -> Message:
        """Add this process's download folders to those in a child's ``Ready`` message."""
        if not isinstance(message, Ready):
            return message
        places = {*message.downloaded_to, *self._listener.seams.downloads.places}
        return replace(message, downloaded_to=tuple(sorted(places)))

    def _hear_bystander(self, child: Link, _: Starting) -> None:
        """End a program that trains in several separate processes; one thread per child.

        A bystander reports its first step. If this process makes a step too within ``PATIENCE_S``,
        it is the one that is measured, and the bystander does not matter.
        """
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
        """Write the exit codes as soon as a script fails; runs on a thread.

        The launcher in this process may end the process because of that failure, before ``finish``
        runs.
        """
        while not any(process.poll() for _, process in self._scripts):
            sleep(POLL_S)
        self._note_codes()


def _is_before_first_step(message: Message) -> bool:
    """Return whether a message only says that the child runs and has made no step."""
    match message:
        case Progress("start-up", steps=0):
            return True
    return False
