"""The processes that the program itself starts, if they train instead of the rig's first process.

The rig's first process keeps the connection to the parent. The first child process that makes an
optimizer step, together with those that started with it, trains in its place: messages are relayed
between their rank 0 and the parent. If a second training begins after the first one has ended, only
the first is measured; ``autotune run`` applies the config to both: ``child_rank.RunChildren``.
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
from time import sleep, time
from typing import TYPE_CHECKING, Any

from pydantic import TypeAdapter

from autotune.inside.processes.child_rank import CHILD, Act, ChildStart, Training
from autotune.inside.processes.rank_process import quit_process
from autotune.inside.ranks.group import served_store
from autotune.inside.seams.started import PROCESS, Host, Script, StartedSeam, Starting
from autotune.rig.local_ranks import LOOPBACK
from autotune.rig.wire import (
    Close,
    Ended,
    Link,
    LinkClosed,
    Message,
    Progress,
    Ready,
    Start,
    ToRig,
    Warned,
    encode,
)

if TYPE_CHECKING:
    from autotune.inside.short_epochs import ShortEpochs
    from autotune.inside.step_tracker import StepTracker

POLL_S = 0.1
ENDING_S = 1.0  # wait for a rank that has closed its connections but may still be ending
TUNED_ALONE = (
    "The program trains in a process that it starts itself (multiprocessing.Process). Of several "
    "that train, this first one is tuned; 'autotune run' applies the config to each of them."
)


class Children(Host):
    """Takes the processes that the program starts into the rig.

    It starts one thread per child that may lead, which relays that child's messages to the parent,
    and one that relays the parent's commands.
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
        self._listener = listener
        self._is_observed = start.applied is None
        helpers = (os.getppid(), os.getpid())
        self._alone = ChildStart(0, 1, "", encode(start).decode(), str(shared), started, helpers)
        self._latest: ChildStart | None = None  # of the ranks that are being started now
        self._store: Any = None
        self._wire: tuple[socket.socket, socket.socket] | None = None  # of a child that starts
        # ranks with what tells their exit codes
        self._processes: list[tuple[int, BaseProcess | subprocess.Popen[Any]]] = []
        self._relays: list[threading.Thread] = []
        self._leads: Link | None = None
        self._seam = StartedSeam(self)

    def install(self) -> None:
        """Begin to watch the processes and scripts that the program starts."""
        self._seam.install()

    def process_starts(self, starting: Starting, act: Act) -> Act | None:
        """Return what a process runs in place of its target; None if it runs that unchanged.

        Pools run whatever they are handed later, and a further single process need not belong to
        the training of the one that is alive: both are left alone.
        """
        has_living = any(_code(process) is None for _, process in self._processes)
        if starting.pools or (starting.by == PROCESS and has_living):
            return None
        if starting.rank == 0 and self._leads is not None:
            if has_living:
                return None
            self.finish()  # only the first training is measured, and it has ended
            with suppress(LinkClosed):
                self._link.send(Ended(0, "", "", 0, at_s=time()))
            quit_process()
        if starting.rank == 0:
            self._wire = socket.socketpair()
        wire = self._wire[1] if self._wire and starting.rank == 0 else None
        return Training(act, self._child(starting), wire, self._leave)

    def process_started(self, starting: Starting, process: BaseProcess, act: Act) -> None:
        """Begin to listen to a process that has started, if it may lead."""
        if isinstance(act, Training):
            self._processes.append((starting.rank, process))
        if self._wire is None:
            return
        ours, theirs = self._wire
        theirs.close()  # then the connection closes when the child ends
        self._wire = None
        relay = threading.Thread(target=self._relay, args=(Link(ours), starting), daemon=True)
        self._relays.append(relay)
        relay.start()

    def script_starts(self, starting: Starting, args: Sequence[str]) -> Script | None:
        """Return the command that runs the program's script again as a further rank.

        None leaves the script as it is, because this process has already made steps or a child
        leads. This process becomes rank 0 of the group.
        """
        if self._listener.steps or self._leads is not None:
            return None
        child = self._child(starting)
        if not self._processes:
            self._listener.take_ranks(replace(child, rank=0).group())
            threading.Thread(target=self._watch_scripts, daemon=True).start()
        env = {CHILD: TypeAdapter(ChildStart).dump_json(child).decode()}
        return Script(
            (sys.executable, "-P", "-m", "autotune.inside.processes.child_rank", *args), env
        )

    def script_started(self, starting: Starting, process: subprocess.Popen[Any]) -> None:
        """Remember a script, so that its exit code can be reported."""
        self._processes.append((starting.rank, process))

    def finish(self, *, has_failed: bool = False) -> None:
        """Relay the children's last messages, and note the exit codes of those that failed.

        Args:
            has_failed: This process has failed. The cause may be a child that is just ending, so
                scripts get a moment to end and show their exit code.
        """
        for _, process in self._processes if has_failed else ():
            if isinstance(process, subprocess.Popen):
                with suppress(subprocess.TimeoutExpired):
                    process.wait(ENDING_S)
        for relay in self._relays:
            relay.join(ENDING_S)
        self._note_codes()

    def _note_codes(self) -> None:
        """Write failed children's exit codes to the rig's folder, for the parent.

        They are in the order of the ranks: nobody saw which failed first.
        """
        codes = {str(rank): code for rank, process in self._processes if (code := _code(process))}
        if codes:
            part = Path(self._alone.shared) / "codes.part"
            with suppress(OSError):  # the rig and its folder may be gone already
                part.write_text(json.dumps(codes), encoding="utf-8")
                part.replace(part.with_suffix(""))

    def _child(self, starting: Starting) -> ChildStart:
        if self._latest is None or starting.rank == 0 or starting.ranks != self._latest.ranks:
            name, key, port = secrets.token_hex(8), secrets.token_hex(32), 0
            if starting.ranks > 1:  # one store serves all groups; names keep their entries apart
                if self._store is None:
                    listener = socket.create_server((LOOPBACK, 0), backlog=1024)
                    self._store = served_store(listener.getsockname()[1], listener.detach())
                port = self._store.port
            self._latest = replace(
                self._alone,
                ranks=starting.ranks,
                started_by=starting.by,
                port=port,
                key=key,
                name=name,
                flags=self._listener.seams.watched.flags.all(),
                config_reads=dict(self._listener.config_reads),
            )
        return replace(self._latest, rank=starting.rank)

    def _leave(self) -> None:
        self._seam.remove()
        self._listener.seams.remove()

    def _relay(self, child: Link, starting: Starting) -> None:
        """Relay a child's messages to the parent from its first step on; one thread per child.

        Before that, another process may turn out to be the one that trains; what is not about
        training is relayed.
        """
        with suppress(LinkClosed):
            for message in child.messages():
                if child is not self._leads and not isinstance(message, Warned):
                    if isinstance(message, Progress) and not message.steps:
                        continue
                    if self._listener.steps or self._leads is not None:
                        child.send(Close())  # the child then trains on without being measured
                        break
                    self._hand_over(child, starting)
                self._link.send(self._with_downloads(message))
            for _ in child.messages():
                pass  # keep reading: a child ends itself when its connection closes

    def _hand_over(self, child: Link, starting: Starting) -> None:
        self._leads = child
        self._listener.stand_aside()
        if starting.by == PROCESS and self._is_observed:
            self._link.send(Warned(TUNED_ALONE))
        threading.Thread(target=self._hand_down, args=(child,), daemon=True).start()

    def _hand_down(self, child: Link) -> None:
        """Relay the parent's commands to the leading child until the parent closes; on a thread."""
        while not isinstance(command := self._commands.get(), Close):
            with suppress(LinkClosed):  # it has ended; finish() reports how
                child.send(command)
        quit_process()

    def _with_downloads(self, message: Message) -> Message:
        if not isinstance(message, Ready):
            return message
        places = {*message.downloaded_to, *self._listener.seams.fence.downloads.places}
        return replace(message, downloaded_to=tuple(sorted(places)))

    def _watch_scripts(self) -> None:
        """Write the exit codes at once: the program's launcher may end this process early."""
        while not any(_code(process) for _, process in self._processes):
            sleep(POLL_S)
        self._note_codes()


def _code(process: BaseProcess | subprocess.Popen[Any]) -> int | None:
    return process.poll() if isinstance(process, subprocess.Popen) else process.exitcode
