"""``python -m autotune.rig.local_ranks --ranks 2 -- COMMAND`` starts the ranks of one machine.

It replaces torchrun on a single machine, because torchrun's rendezvous listens on the network and
exchanges pickles. Each rank runs the command in a new session, with the environment that torchrun
documents. The ranks share a key-value store on the loopback interface: this process opens the
listening socket, and rank 0 inherits it and serves the store. Messages between the ranks are
signed with a key that is drawn for each launch.

Covered: other machines cannot connect; if one rank fails, the others are ended; if this launcher
ends, by SIGKILL too, the ranks end with it. Not covered: other users of this machine can connect to
the store, but do not have the key; several nodes, for which torchrun is used; a process that a rank
moved to another session and that outlives the rank.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import secrets
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from autotune.rig import processes

LOOPBACK = "127.0.0.1"
OURS = "AUTOTUNE_RANKS_"  # prefix of the variables by which this launcher talks to its ranks
KEY = f"{OURS}KEY"  # secret that signs the messages between the ranks
LISTENER = f"{OURS}LISTENER"  # for rank 0: file descriptor of the store's listening socket
OTHERS = f"{OURS}OTHERS"  # for rank 0: a pipe that closes when all other ranks have ended
INTERFACES = ("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME")
ENDING = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# The peers of a dead rank fail within milliseconds, and may be seen to have ended before it.
TOGETHER_S = 0.5
GRACE_S = 3.0  # for the other ranks when one failed; with TOGETHER_S below open_rig's LAUNCHER_S
# After a signal to the launcher the ranks get this long to save a checkpoint, as under torchrun. A
# second signal ends them at once.
SIGNALLED_GRACE_S = 30.0
DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of prctl(2)


@dataclass(frozen=True)
class Launch:
    """The parsed command line: what to start, and how often.

    Attributes:
        codes: JSON file for the exit codes of failed ranks, by rank; None prints them on stderr.
    """

    ranks: int
    command: tuple[str, ...]
    codes: Path | None = None
    pass_fds: tuple[int, ...] = ()


def parsed(arguments: Sequence[str]) -> Launch:
    """Parse the launcher's command line; everything after the first ``--`` is the ranks' command.

    Raises:
        SystemExit: when the command is missing or an option is invalid, as argparse does.
    """
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
    """Return the environment variables that a rank gets in addition to the launcher's.

    Source: "Environment Variables" in the documentation of torch.distributed.run, and worker_env
    of torch.distributed.elastic.agent.server.local_elastic_agent. ``TORCHELASTIC_USE_AGENT_STORE``
    says that a store already exists, so that the program's ``init_process_group()`` does not try
    to open a second one at the same port. Ranks talk over loopback unless the user names another
    interface.
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
        **{name: os.environ.get(name, "lo") for name in INTERFACES},
        KEY: key,
    }


class Ranks:
    """The running ranks of a launch, in the order of their numbers; making the object starts them.

    Raises:
        OSError: when the command cannot be started; the ranks before are ended again.
    """

    def __init__(self, launch: Launch, signals: Signals) -> None:
        self._signals = signals
        self._started: list[subprocess.Popen[bytes]] = []
        # Rank 0 serves the store and may only end after the others, which still read from it. It
        # waits for the end of this pipe, which is closed here once rank 0 is the last.
        self._told, self._alone = os.pipe()
        # Without what an outer launch set for its ranks
        outer = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
        run_id, key = secrets.token_hex(8), secrets.token_hex(32)
        with socket.create_server((LOOPBACK, 0), backlog=1024) as listener:
            fds = (listener.fileno(), self._told, *launch.pass_fds)
            port = listener.getsockname()[1]
            first = {LISTENER: str(listener.fileno()), OTHERS: str(self._told)}
            try:
                for rank in range(launch.ranks):
                    environment = environment_of(rank, launch.ranks, port, run_id, key)
                    process = subprocess.Popen(
                        launch.command,
                        env={**outer, **environment, **first},
                        pass_fds=fds,
                        start_new_session=True,
                        preexec_fn=_prepare_rank,  # noqa: PLW1509 - we have no threads
                    )
                    self._started.append(process)
                    first, fds = {}, ()
            except OSError:
                self.end(signal.SIGTERM, GRACE_S)
                raise
        for inherited in (self._told, *launch.pass_fds):
            os.close(inherited)

    def codes(self) -> list[int | None]:
        """Return the exit codes of all ranks; None for each one that still runs.

        As soon as all others have ended, rank 0 is told, so that it stops serving their store.
        """
        codes = [process.poll() for process in self._started]
        if None not in codes[1:] and self._alone >= 0:
            os.close(self._alone)
            self._alone = -1
        return codes

    def failed(self) -> dict[int, int]:
        """Return the exit codes of failed ranks, by rank, those first that were seen first.

        Called once one has failed; the others get ``TOGETHER_S`` to fail too.
        """
        failed: dict[int, int] = {}
        until = monotonic() + TOGETHER_S
        while True:
            codes = self.codes()
            failed |= {rank: code for rank, code in enumerate(codes) if code and rank not in failed}
            left_s = until - monotonic()
            if None not in codes or left_s <= 0 or self._signals.wait(left_s):
                return failed

    def end(self, number: int, grace_s: float) -> None:
        """Send a signal to the running ranks, wait, and kill whatever is left of them.

        A second signal to this process ends the wait at once.
        """
        for process in self._started:
            process.send_signal(number)  # does nothing if the process has ended
        until = monotonic() + grace_s
        while None in self.codes() and (left_s := until - monotonic()) > 0:
            if self._signals.wait(left_s):
                break
        for process in self._started:
            processes.end_tree(process, grace_s=0.0)


class Signals:
    """The signals that this process receives: they are blocked, and taken one by one.

    So none is lost between two waits. ``nohup`` starts programs with SIGHUP ignored, and it must
    stay ignored.
    """

    def __init__(self) -> None:
        ending = [number for number in ENDING if signal.getsignal(number) != signal.SIG_IGN]
        self._awaited = {signal.SIGCHLD, *ending}
        signal.pthread_sigmask(signal.SIG_BLOCK, self._awaited)

    def wait(self, timeout_s: float | None = None) -> int | None:
        """Wait for a signal, at most so long; return its number if it asks this process to end."""
        if timeout_s is None:
            number = signal.sigwait(self._awaited)
        elif (info := signal.sigtimedwait(self._awaited, timeout_s)) is None:
            return None
        else:
            number = info.si_signo
        return None if number == signal.SIGCHLD else int(number)


def main(arguments: Sequence[str]) -> int:
    """Start the ranks and wait for all of them.

    Returns:
        0 if all ranks exit with 0, 1 if one fails, 128 plus the number of the signal that ended
        this launcher.
    """
    launch = parsed(arguments)
    signals = Signals()
    ranks = Ranks(launch, signals)
    while True:
        codes = ranks.codes()
        if any(codes):
            _note(ranks.failed(), launch.codes)
            ranks.end(signal.SIGTERM, GRACE_S)
            return 1
        if None not in codes:
            return 0
        if number := signals.wait():
            ranks.end(number, SIGNALLED_GRACE_S)
            return 128 + number


def _note(failed: dict[int, int], path: Path | None) -> None:
    """Write the exit codes of the ranks that failed first to the file, or to stderr without one.

    The file is replaced in one step, because the parent may read it at any time.
    """
    if path is not None:
        part = path.with_name(f"{path.name}.part")
        with suppress(OSError):  # the rig that wanted to know has ended, and removed its folder
            part.write_text(json.dumps(failed), encoding="utf-8")
            part.replace(path)
        return
    for rank, code in failed.items():
        how = f"exited with code {code}" if code > 0 else f"was ended by signal {-code}"
        sys.stderr.write(f"autotune: rank {rank} {how}; the others are ended\n")


def _prepare_rank() -> None:
    """Unblock the launcher's signals, and have the kernel kill this rank when the launcher dies.

    What the launcher's own starter has blocked stays so.
    """
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD, *ENDING})
    with suppress(AttributeError, OSError):  # a C library without prctl()
        ctypes.CDLL(None).prctl(DEATH_SIGNAL, signal.SIGKILL)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
