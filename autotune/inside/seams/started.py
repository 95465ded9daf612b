"""The seam at processes that the program starts, so that processes that train get the seams, too.

Covered: ``multiprocessing.Process`` with a target, by any start method, and so
``torch.multiprocessing.spawn`` and ``start_processes``; scripts that start themselves again with
``LOCAL_RANK`` and ``WORLD_SIZE`` in the environment, as Lightning's launcher does.

Not covered: subclasses of Process that override ``run``; programs that start another script.
"""

from __future__ import annotations

import os
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from multiprocessing.process import BaseProcess
from typing import Any

import torch.multiprocessing

from autotune.inside.hubs.patches import Patches, Seam

SPAWN = "torch.multiprocessing.spawn"  # a module; the package has a function of that name
PROCESS = "multiprocessing.Process"
# Modules whose processes run the module's own function, which gets its work only later.
POOLS = ("concurrent.futures.", "multiprocessing.")
Act = Callable[..., Any]


@dataclass(frozen=True)
class Starting:
    """A process that is about to start.

    Attributes:
        rank: Its number among the processes that are started together, from 0.
        ranks: The number of processes that are started together.
        by: The function or launcher that starts it, as named to the user.
        forks: It begins as a copy of this process, with the seams in it.
        pools: It is a worker of a pool or a daemon, which may run anything later.
    """

    rank: int
    ranks: int
    by: str
    forks: bool = False
    pools: bool = False


@dataclass(frozen=True)
class Script:
    """The command that is started instead of the program's own script.

    Attributes:
        argv: The argument list.
        env: Environment variables that are added or replaced.
    """

    argv: tuple[str, ...]
    env: Mapping[str, str]


class Host(ABC):
    """Decides what runs in the processes that a program starts.

    In a rig this is ``Children``; under ``autotune run`` it is ``RunChildren``.
    """

    @abstractmethod
    def process_starts(self, starting: Starting, act: Act) -> Act | None:
        """Return what runs in a process in place of its target; None leaves the target."""

    def process_started(self, starting: Starting, process: BaseProcess, act: Act) -> None:  # noqa: B027
        """Note that a process has started with the act that ``process_starts()`` returned."""

    @abstractmethod
    def script_starts(self, starting: Starting, args: Sequence[str]) -> Script | None:
        """Return what is started instead of the program's script with these arguments, or None."""

    def script_started(self, starting: Starting, process: subprocess.Popen[Any]) -> None:  # noqa: B027
        """Note that a script has started with the command that ``script_starts()`` returned."""


class StartedSeam(Seam):
    """Lets a host decide about each process that the program starts.

    The patched functions run on whatever thread starts a process. Processes started by a forked
    child are left as they are.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        # Number of processes and starter of each start_processes() call that is running.
        self._together: list[tuple[int, str]] = []
        self._pid = os.getpid()
        self._patches = Patches()

    def install(self) -> None:
        """Patch ``start_processes``, ``Process.start`` and ``subprocess.Popen``."""
        module = import_module(SPAWN)
        self._patches.wrap(module, "start_processes", self._start_together)
        self._patches.replace(torch.multiprocessing, "start_processes", module.start_processes)
        self._patches.wrap(BaseProcess, "start", self._start)
        self._patches.wrap(subprocess.Popen, "__init__", self._start_script)

    def _start_together(
        self, original: Act, fn: Act, args: Any = (), nprocs: int = 1, *more: Any, **rest: Any
    ) -> Any:
        is_spawn = sys._getframe(2).f_code is import_module(SPAWN).spawn.__code__  # noqa: SLF001
        by = SPAWN if is_spawn else "torch.multiprocessing.start_processes"
        self._together.append((nprocs, by))
        try:
            return original(fn, args, nprocs, *more, **rest)
        finally:
            self._together.pop()

    def _start(self, original: Act, process: Any) -> None:
        starting = self._starting(process)
        act = starting and self._replace_target(process, starting)
        original(process)
        if starting and act:
            self._host.process_started(starting, process, act)

    def _start_script(
        self, original: Act, process: Any, args: Any, *more: Any, **rest: Any
    ) -> None:
        starting, arguments = None, list[str]()
        if os.getpid() == self._pid and isinstance(args, (list, tuple)):
            starting = _rank_of_script(args, rest.get("env"))
            arguments = [*args[2:]] if "-m" not in args[1:2] else [*args[3:]]
        script = starting and self._host.script_starts(starting, arguments)
        if not starting or not script:
            original(process, args, *more, **rest)
            return
        rest["env"] = {**rest["env"], **script.env}
        original(process, script.argv, *more, **rest)
        self._host.script_started(starting, process)

    def _starting(self, process: Any) -> Starting | None:
        target = process._target  # noqa: SLF001 - nothing else tells what it will do
        if target is None or os.getpid() != self._pid:
            return None
        method = process._start_method or torch.multiprocessing.get_start_method()  # noqa: SLF001 - nor how it begins
        forks = method == "fork"
        if target is import_module(SPAWN)._wrap and self._together:  # noqa: SLF001
            ranks, by = self._together[-1]
            return Starting(process._args[1], ranks, by, forks)  # noqa: SLF001
        module = str(getattr(target, "__module__", ""))
        if module.startswith("torch.utils.data."):
            return None
        pools = process.daemon or f"{module}.".startswith(POOLS)
        return Starting(0, 1, PROCESS, forks, pools)

    def _replace_target(self, process: Any, starting: Starting) -> Act | None:
        """Replace the program's function by the host's act, and return that; None for no change.

        Under ``start_processes`` the target is torch's wrapper, which reports a rank's exceptions.
        It stays, and only the function within it is replaced.
        """
        together = starting.by != PROCESS
        own = process._args[0] if together else process._target  # noqa: SLF001
        act = self._host.process_starts(starting, own)
        if act is not None and together:
            process._args = (act, *process._args[1:])  # noqa: SLF001
        elif act is not None:
            process._target = act  # noqa: SLF001
        return act


def _rank_of_script(args: Sequence[Any], env: Mapping[str, str] | None) -> Starting | None:
    if env is None or len(args) < 2 or args[0] != sys.executable:
        return None
    rank, ranks = env.get("LOCAL_RANK", ""), env.get("WORLD_SIZE", "")
    if not (rank.isdigit() and ranks.isdigit()) or rank == os.environ.get("LOCAL_RANK", "0"):
        return None
    main = getattr(sys.modules.get("__main__"), "__spec__", None)
    is_own = args[1] == "-m" and main is not None and args[2:3] == [main.name]
    main_file = getattr(sys.modules.get("__main__"), "__file__", None) or ""
    # sys.argv[0] may be relative to a folder that the program has left; __file__ is compared, too.
    own_files = {os.path.realpath(sys.argv[0]), os.path.realpath(main_file)}
    if not is_own and os.path.realpath(args[1]) not in own_files:
        return None
    return Starting(int(rank), int(ranks), _launcher())


def _launcher() -> str:
    """Return what starts the script again, as named to the user; looks for Lightning's frames."""
    frame = sys._getframe(1)  # noqa: SLF001
    while frame is not None:
        if "lightning" in str(frame.f_globals.get("__name__", "")).partition(".")[0]:
            return "Lightning's script launcher"
        frame = frame.f_back  # type: ignore[assignment]
    return "a launcher that runs the script again with LOCAL_RANK"
