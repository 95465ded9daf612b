"""``python -m autotune.rig.local_ranks --ranks 2 -- COMMAND``: starts the ranks of one machine.

Each rank runs the command with the environment that torchrun documents, in a session of its own.
They meet on the loopback interface alone: the socket at which they do is opened here, and the first
rank inherits it and serves their store. A key of the run signs what they tell each other there.

Covered: other machines, which can connect to nothing; ranks that fail, which end the others; our
own end, whatever way. Not covered: other users of this machine can connect to the store, but hold
no key; several nodes, which meet by torchrun; a process that a rank moved to a session of its own
and that outlives it.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import secrets
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from autotune.rig import processes

LOOPBACK = "127.0.0.1"
OURS = "AUTOTUNE_RANKS_"  # how the names of our own variables begin
KEY = f"{OURS}KEY"  # signs what the ranks tell each other
LISTENER = f"{OURS}LISTENER"  # the socket at which they meet, for the first one
OTHERS = f"{OURS}OTHERS"  # a pipe that closes when the others have ended, for the first one
SLURM_TASKS = "SLURM_STEP_NUM_TASKS"
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
GRACE_S = 3.0  # for ranks beside one that failed: the parent of a rig waits 5 s in all
SIGNALLED_GRACE_S = 30.0  # to save a checkpoint after a signal, as torchrun's; a second one ends it
DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)


@dataclass(frozen=True)
class Launch:
    """What is started.

    Attributes:
        ranks: How many.
        command: What each of them runs.
        codes: Where the exit codes of ranks that failed are noted, by rank, as JSON.
        pass_fds: Open files that the first rank inherits.
    """

    ranks: int
    command: tuple[str, ...]
    codes: Path | None = None
    pass_fds: tuple[int, ...] = ()


def parsed(arguments: Sequence[str]) -> Launch:
    """Return what a command line asks for."""
    parser = argparse.ArgumentParser(prog="python -m autotune.rig.local_ranks")
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--codes", type=Path)
    parser.add_argument("--pass-fds", default="", help="numbers, with commas between them")
    if "--" not in arguments or arguments[-1] == "--":
        parser.error("the command that each rank runs is missing: end with -- COMMAND")
    border = arguments.index("--")
    options = parser.parse_args(arguments[:border])
    if options.ranks < 1:
        parser.error(f"--ranks {options.ranks} starts nothing; give 1 or more")
    fds = tuple(int(number) for number in options.pass_fds.split(",") if number)
    return Launch(options.ranks, tuple(arguments[border + 1 :]), options.codes, fds)


def environment_of(rank: int, ranks: int, port: int, run_id: str, key: str) -> dict[str, str]:
    """Return what a rank finds in its environment.

    Source: "Environment Variables" in the documentation of torch.distributed.run, and worker_env
    of torch.distributed.elastic.agent.server.local_elastic_agent. That the store is the agent's
    keeps a program's own init_process_group() from opening another.
    """
    numbers = {f"{scope}RANK": str(rank) for scope in ("", "LOCAL_", "ROLE_")}
    sizes = {f"{scope}WORLD_SIZE": str(ranks) for scope in ("", "LOCAL_", "ROLE_")}
    return {
        **numbers,
        **sizes,
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "ROLE_NAME": "default",
        "MASTER_ADDR": LOOPBACK,
        "MASTER_PORT": str(port),
        "TORCHELASTIC_RUN_ID": run_id,
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0",
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": os.environ.get("TORCH_NCCL_ASYNC_ERROR_HANDLING", "1"),
        **dict.fromkeys(INTERFACES, "lo"),
        **_slurm(rank, ranks),
        KEY: key,
    }


def _slurm(rank: int, ranks: int) -> dict[str, str]:
    """Return what srun tells each task, where this launcher stands for one.

    Source: the output environment variables of ``srun``.
    """
    if os.environ.get(SLURM_TASKS) != str(ranks) or ranks == 1:
        return {}
    return {"SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank), "SLURM_NODEID": "0"}


class Ranks:
    """The ranks of a launch, in the order of their numbers.

    Args:
        launch: What is started.
        signals: That this process gets.
    """

    def __init__(self, launch: Launch, signals: Signals) -> None:
        self._signals = signals
        self._started: list[subprocess.Popen[bytes]] = []
        self._told, self._alone = os.pipe()  # the first rank reads its end when it is alone
        run_id, key = secrets.token_hex(8), secrets.token_hex(32)
        with socket.create_server((LOOPBACK, 0), backlog=1024) as listener:
            fds = (listener.fileno(), self._told, *launch.pass_fds)
            port = listener.getsockname()[1]
            first = {LISTENER: str(listener.fileno()), OTHERS: str(self._told)}
            try:
                for rank in range(launch.ranks):
                    environment = environment_of(rank, launch.ranks, port, run_id, key)
                    self._start(launch.command, environment | first, fds)
                    first, fds = {}, ()
            except OSError:
                self.end(signal.SIGTERM, GRACE_S)
                raise
        for inherited in (self._told, *launch.pass_fds):
            os.close(inherited)

    def _start(
        self, command: Sequence[str], environment: dict[str, str], fds: Collection[int]
    ) -> None:
        process = subprocess.Popen(
            command,
            env={**_without_ours(os.environ), **environment},
            pass_fds=fds,
            start_new_session=True,
            preexec_fn=_end_with_launcher,  # noqa: PLW1509 - we have no threads
        )
        self._started.append(process)

    def codes(self) -> list[int | None]:
        """Return their exit codes, None of those that run; the first one learns that it is last."""
        codes = [process.poll() for process in self._started]
        if None not in codes[1:] and self._alone >= 0:
            os.close(self._alone)
            self._alone = -1
        return codes

    def end(self, number: int, grace_s: float) -> None:
        """End those that run, by a signal, and after some time, or a second signal, at once."""
        for process in self._started:
            process.send_signal(number)  # does nothing where it has ended
        until = monotonic() + grace_s
        while None in self.codes() and (left_s := until - monotonic()) > 0:
            if self._signals.wait(left_s):
                break
        for process in self._started:
            processes.end_tree(process, grace_s=0.0)


class Signals:
    """The signals that this process gets, none of which is missed between two looks."""

    def __init__(self) -> None:
        self._came, written = os.pipe()
        os.set_blocking(written, False)
        signal.set_wakeup_fd(written, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, _wake)
        for number in ENDING:
            if signal.getsignal(number) != signal.SIG_IGN:  # nohup wants it ignored
                signal.signal(number, _wake)

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait for a signal; return its number if it asks us to end, None for any other."""
        if not select.select([self._came], [], [], timeout_s)[0]:
            return None
        came = os.read(self._came, 4096)
        return next((number for number in ENDING if number in came), None)


def main(arguments: Sequence[str]) -> int:
    """Start ranks and wait for their end; return 0 when all end with 0."""
    launch = parsed(arguments)
    signals = Signals()
    ranks = Ranks(launch, signals)
    while True:
        codes = ranks.codes()
        if failed := {rank: code for rank, code in enumerate(codes) if code}:
            _note(failed, launch.codes)
            ranks.end(signal.SIGTERM, GRACE_S)
            return 1
        if None not in codes:
            return 0
        if number := signals.wait():
            ranks.end(number, SIGNALLED_GRACE_S)
            return 128 + number


def _note(failed: dict[int, int], path: Path | None) -> None:
    """Say which ranks failed first, negative codes being signals."""
    if path is not None:
        part = path.with_name(f"{path.name}.part")
        with suppress(OSError):  # who wanted to know has gone, and its folder
            part.write_text(json.dumps(failed), encoding="utf-8")
            part.replace(path)
        return
    for rank, code in failed.items():
        how = f"exited with code {code}" if code > 0 else f"was ended by signal {-code}"
        sys.stderr.write(f"autotune: rank {rank} {how}; the others are ended\n")


def _without_ours(environment: os._Environ[str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if not name.startswith(OURS)}


def _wake(*_: object) -> None:
    """Take a signal whose number the wake-up file already has."""


def _end_with_launcher() -> None:
    """In a rank that begins: end when the launcher is killed and can end nothing any more."""
    with suppress(AttributeError, OSError):  # a C library without prctl()
        ctypes.CDLL(None).prctl(DEATH_SIGNAL, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
