"""Processes that begin as copies of one that has imported torch: a start takes milliseconds.

For tests that need a running program, and not its start. Within ``copies()``, a process of its own,
the nursery, starts the copies, with the arguments, environment, descriptors, folder and session
asked for. It imports torch once for all tests of a worker; this process stays as it is.

Before a copy runs what changes torch (``CHANGES``) it leaves an untouched copy behind, a nursery,
of which whatever it starts is copied. Copies are children of the process that asked for them all
the same (CLONE_PARENT of clone(2)).

A copy differs from a fresh process in what is read when libraries load: /proc/PID/environ is the
nursery's, a preloaded library is not there, and strings hash alike in all copies. Tests of such
things start real processes.
"""

import _posixsubprocess
import atexit
import ctypes
import fcntl
import gc
import importlib.machinery
import itertools
import json
import os
import platform
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

CHANGES = ("autotune.inside",)
PRELOADED = (
    "torch._dynamo",
    "torch.distributed",
    "torch.distributed.run",
    "torch.multiprocessing",
    "torch.utils.data",
    "autotune.api",
    "autotune.cli.app",
    "autotune.rig.local_ranks",
    "autotune.inside.processes.children",
    "autotune.inside.processes.lead_rank",
    "autotune.inside.processes.follower_rank",
    "autotune.inside.train",
    "autotune.rig.rig",
)
CLONE = {"x86_64": 56, "aarch64": 220}.get(platform.machine(), -1)  # of Linux
CLONE_PARENT = 0x8000
VALUED = ("-X", "-W")

ROOT = Path(__file__).parents[1]

_fork_exec: Callable[..., int] = _posixsubprocess.fork_exec
_path: list[str] = []
_asking = threading.Lock()


def _warm_up() -> None:
    """Import what is slow; what replaces a process by our interpreter keeps the process."""
    _path[:] = sys.path
    gc.disable()
    for name in PRELOADED:
        __import__(name)
    gc.freeze()
    gc.enable()
    os.execve = _replaced
    os.execv = lambda path, argv: _replaced(path, argv, os.environ)


def _start_by(fork_exec: Callable[..., int]) -> None:
    """Have subprocess and multiprocessing start processes by this."""
    for module in (_posixsubprocess, subprocess):
        name = "fork_exec" if module is _posixsubprocess else "_fork_exec"
        setattr(module, name, fork_exec)


@contextmanager
def copies() -> Iterator[None]:
    """Start copies of a nursery where our own interpreter is to be started."""
    if CLONE < 0:  # an architecture whose number of clone(2) is not known here
        yield
        return
    _start_by(_copied_by(_nursery()[1]))
    try:
        yield
    finally:
        _start_by(_fork_exec)


def nursery_pids() -> set[int]:
    """Return the nursery of this process, which lives as long as it does."""
    return {_nursery()[0].pid} if _nursery.cache_info().currsize else set()


@cache
def _nursery() -> tuple[subprocess.Popen[bytes], socket.socket]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        command = [sys.executable, "-m", "tests.warm", str(theirs.fileno())]
        # numpy's OpenBLAS starts threads where it is imported; a copy would wait for their locks
        alone = {**os.environ, "OPENBLAS_NUM_THREADS": "1"}
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], cwd=ROOT, env=alone)

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return process, ours


def _leave_nursery() -> None:
    """Leave an untouched copy behind, of which all that starts from here on is copied."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    if not os.fork():
        ours.close()
        _nurse(theirs)
    theirs.close()
    _start_by(_copied_by(ours))


def _copied_by(nursery: socket.socket) -> Callable[..., int]:
    """Return what does as ``_posixsubprocess.fork_exec`` does, by asking a nursery."""

    def copied(args: Sequence[Any], executables: Sequence[bytes], *more: Any) -> int:
        needs_a_real_one = any(callable(one) for one in more[14:])  # a function to run before exec
        if needs_a_real_one or not _is_ours(executables[0]) or not _is_plain(args):
            return _fork_exec(args, executables, *more)
        wanted, fds = _wanted(args, more)
        with _asking:  # several threads may start processes
            socket.send_fds(nursery, [json.dumps(wanted).encode()], fds)
            return int(nursery.recv(64))

    return copied


def _wanted(args: Sequence[Any], more: Sequence[Any]) -> tuple[dict[str, Any], list[int]]:
    """Return what ``fork_exec`` was asked for, and the descriptors that become its ``fds``."""
    (_, pass_fds, cwd, env, stdin, _, _, stdout, _, stderr, _, failed, _, session) = more[:14]
    stdio = (own if own >= 0 else n for n, own in enumerate((stdin, stdout, stderr)))
    fds = dict(zip((0, 1, 2), stdio, strict=True)) | {n: n for n in {*pass_fds} - {failed}}
    variables = os.environb if env is None else dict(v.split(b"=", 1) for v in env)
    wanted = {
        "argv": [os.fsdecode(arg) for arg in args],
        "env": {os.fsdecode(k): os.fsdecode(v) for k, v in variables.items()},
        "cwd": os.fsdecode(cwd or Path.cwd()),
        "session": bool(session),
        "fds": list(fds),
    }
    return wanted, list(fds.values())


def _nurse(requests: socket.socket) -> NoReturn:
    """Start copies for the process that this one was left behind by, until that has gone."""
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    while True:
        text, fds, _, _ = socket.recv_fds(requests, 1 << 20, 64)
        if not text:
            os._exit(0)
        pid = ctypes.CDLL(None).syscall(CLONE, CLONE_PARENT | signal.SIGCHLD, 0, 0, 0, 0)
        if pid == 0:
            ctypes.pythonapi.PyOS_AfterFork_Child()
            _be_born(json.loads(text), fds)
        requests.send(str(pid).encode())
        for number in fds:
            os.close(number)


def _be_born(
    wanted: dict[str, Any], fds: list[int], before_exec: Callable[[], object] | None = None
) -> NoReturn:
    """Become what was asked for."""
    try:
        high = [fcntl.fcntl(number, fcntl.F_DUPFD, 500) for number in fds]
        for own, number in zip(high, wanted["fds"], strict=True):
            os.dup2(own, number)
        _close_but(set(wanted["fds"]))
        os.chdir(wanted["cwd"])
        if wanted["session"]:
            os.setsid()
        if before_exec is not None:
            before_exec()
        _interpret(wanted["argv"], wanted["env"])
    finally:
        os._exit(255)


def _close_but(kept: set[int]) -> None:
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208 - numbers
        if int(name) not in kept:
            with suppress(OSError):
                os.close(int(name))


def _copied(args: Sequence[Any], executables: Sequence[bytes], *more: Any) -> int:
    """Do what ``_posixsubprocess.fork_exec`` does, in a copy of this process if it is Python."""
    if not _is_ours(executables[0]):
        return _fork_exec(args, executables, *more)
    wanted, fds = _wanted(args, more)
    before_exec = next((one for one in more[14:] if callable(one)), None)
    sys.stdout.flush()
    sys.stderr.flush()
    if pid := os.fork():
        return pid
    _be_born(wanted, fds, before_exec)


def _replaced(path: Any, argv: Any, env: Any) -> NoReturn:
    """Do what ``os.execve`` does, in this very process."""
    if not _is_ours(path):
        _execve(path, argv, env)
    _interpret([os.fsdecode(word) for word in argv], dict(env))


_execve = os.execve


def _is_plain(args: Sequence[Any]) -> bool:
    """Tell whether the interpreter gets no option that acts where it starts, such as ``-W``."""
    words = [os.fsdecode(word) for word in args[1:]]
    options = itertools.takewhile(lambda word: word.startswith("-"), words)
    own = itertools.takewhile(lambda word: word not in {"-m", "-c"}, options)
    return set(own) <= {"-P", "-u"}


def _is_ours(path: Any) -> bool:
    return os.fsdecode(path) == sys.executable


def _interpret(argv: Sequence[str], variables: Any) -> NoReturn:
    """Do what the interpreter does with a command line, and end."""
    variables = {os.fsdecode(k): os.fsdecode(v) for k, v in variables.items()}
    _start_by(_copied)
    os.environ.clear()
    os.environ.update(variables)
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGCHLD, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    words, has_safe_path = list(argv[1:]), False
    while words[0].startswith("-") and words[0] not in {"-m", "-c"}:
        has_safe_path |= words[0] == "-P"
        del words[: 1 + (words[0] in VALUED)]
    added = [p for p in os.environ.get("PYTHONPATH", "").split(os.pathsep) if p and p not in _path]
    sys.path[:] = [*added, *_path]
    if added:  # there may be knobs of third parties
        sys.modules["autotune.knobs"].registry.cache_clear()
    if (threads := variables.get("OMP_NUM_THREADS", "")).isdigit():  # OpenMP has read it before
        sys.modules["torch"].set_num_threads(int(threads))
    if "numpy" in sys.modules:  # a fresh process draws numbers that no other draws
        sys.modules["numpy"].random.seed()
    tempfile.tempdir = None  # the nursery's; torch has taken the folder of its headers from it
    if codecache := sys.modules.get("torch._inductor.codecache"):
        headers = Path(codecache.default_cache_dir()) / "precompiled_headers"
        vars(codecache)["_HEADER_DIR"] = str(headers)
    code = 0
    try:
        _execute(words, has_safe_path=has_safe_path)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
    except BaseException:  # noqa: BLE001 - as the interpreter does
        sys.excepthook(*sys.exc_info())
        code = 1
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code & 0xFF)


def _execute(words: list[str], *, has_safe_path: bool) -> None:
    """Run ``-m MODULE``, ``-c CODE`` or a script as ``__main__``."""
    if words[0] == "-m":
        if words[1].startswith(CHANGES):
            _leave_nursery()
        if not has_safe_path:
            sys.path.insert(0, str(Path.cwd()))
        sys.argv[:] = words[1:]
        sys.modules.pop(words[1], None)  # runpy wants to import it
        main = sys.modules["__main__"] = ModuleType("__main__")
        vars(main)["__builtins__"] = __builtins__
        runpy._run_module_as_main(words[1])  # type: ignore[attr-defined]
        return
    main = sys.modules["__main__"] = ModuleType("__main__")
    vars(main)["__builtins__"] = __builtins__
    if words[0] == "-c":
        sys.argv[:] = ["-c", *words[2:]]
        sys.path.insert(0, "")
        exec(words[1], vars(main))
        return
    sys.argv[:] = words
    if not has_safe_path:
        sys.path.insert(0, str(Path(words[0]).resolve().parent))
    loader = importlib.machinery.SourceFileLoader("__main__", str(Path.cwd() / words[0]))
    vars(main).update(__file__=words[0], __loader__=loader)
    exec(compile(Path(words[0]).read_bytes(), words[0], "exec"), vars(main))


if __name__ == "__main__":
    _warm_up()
    threads = [*Path("/proc/self/task").iterdir()]
    assert len(threads) == 1, "copies would wait for the locks of others"
    _nurse(socket.socket(fileno=int(sys.argv[1])))
