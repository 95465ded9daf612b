"""Every test must leave environment, processes, threads and scratch folders as it found them."""

import gc
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from functools import cache
from pathlib import Path

import psutil
import pytest

from autotune.machine import hardware
from tests import rigging, warm

# What is imported stays: to look through it again and again takes seconds of each worker.
gc.disable()
# A scratch root of this run's own, so that another run beside it is not taken for a leak.
os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="at-", dir="/tmp")
tempfile.tempdir = None
# The first process of the run says where; workers inherit it.
os.environ.setdefault("AUTOTUNE_TESTS_COMPILED", str(Path(os.environ["TMPDIR"]) / "compiled"))
# Tests compile small models: processes that compile for it take longer to start than that does.
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"

# A shell's & leaves SIGINT ignored, and every program that a test starts would inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)

THREADS_OF_LIBRARIES = ("tqdm", "pin_memory", "QueueFeeder")
VARIABLES_OF_LIBRARIES = {
    "_TORCHINDUCTOR_PYOBJECT_TENSOR_DATA_PTR",
    "PYTEST_CURRENT_TEST",
    "TORCHINDUCTOR_CACHE_DIR",
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let each worker begin with its share of the slow files, so that none of them comes last.

    ``--dist worksteal`` gives each worker one stretch of the list. The slow tests of a file stay
    together, because they may share what is expensive to set up.
    """
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    slow = [item for item in items if item.get_closest_marker("slow")]
    rest = [item for item in items if not item.get_closest_marker("slow")]
    files = sorted({item.path for item in slow})
    stretches = []
    for worker in range(workers):
        own = set(files[worker::workers])
        begin, end = (len(rest) * n // workers for n in (worker, worker + 1))
        stretches += [item for item in slow if item.path in own] + rest[begin:end]
    items[:] = stretches
    gc.freeze()
    gc.enable()


@cache
def _cuda_is_usable() -> bool:
    import torch  # only for a test that needs it: most workers do without

    return torch.cuda.is_available()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip a test of a GPU where there is none; a machine with a GPU runs it in ``make test``."""
    if item.get_closest_marker("gpu") and not _cuda_is_usable():
        pytest.skip("needs an NVIDIA GPU: torch.cuda is not available here")


@pytest.fixture(scope="session", autouse=True)
def _fence() -> Iterator[None]:
    with rigging.fence():
        yield


@pytest.fixture(autouse=True)
def _nothing_leaks(_fence: None) -> Iterator[None]:
    environment = dict(os.environ)
    threads = set(threading.enumerate())
    children = _children()
    scratch = _scratch()
    yield
    if dynamo := sys.modules.get("torch._dynamo.utils"):
        dynamo.counters.clear()  # else the next test's program is taken for one that compiles
    assert _without_libraries(os.environ) == _without_libraries(environment)
    leaked = [
        thread.name
        for thread in set(threading.enumerate()) - threads
        if not thread.name.startswith(THREADS_OF_LIBRARIES)
    ]
    assert not leaked, f"threads left behind: {leaked}"
    assert not _left_of(children), "processes were left behind"
    assert not _scratch() - scratch, "scratch folders were left behind"


@pytest.fixture
def warm_starts(request: pytest.FixtureRequest, _nothing_leaks: None) -> Iterator[None]:
    """Copies of a process that has imported torch are started where our interpreter would be.

    Not for a test that is marked ``real_starts``.
    """
    if request.node.get_closest_marker("real_starts"):
        yield
        return
    with warm.copies():
        yield


@pytest.fixture
def emulated_bf16(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have this CPU taken for one with bf16 instructions: torch emulates them where they lack."""
    known = hardware._cpu_flags()
    monkeypatch.setattr(hardware, "_cpu_flags", lambda: {*known, "avx512_bf16"})


@pytest.fixture
def workplace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    place = tmp_path / 'it\'s a "place"'
    place.mkdir()
    monkeypatch.chdir(place)
    return place


def pytest_unconfigure() -> None:
    """Take the scratch root away."""
    shutil.rmtree(os.environ["TMPDIR"], ignore_errors=True)


def _without_libraries(environment: Mapping[str, str]) -> dict[str, str]:
    return {n: v for n, v in environment.items() if n not in VARIABLES_OF_LIBRARIES}


def _children() -> set[int]:
    """Return what runs below this process, as far as it is no nursery.

    Read from what the kernel keeps of each thread, where it does: to look through all processes
    before and after each test would take longer than most of the tests.
    """
    if not Path(f"/proc/self/task/{os.getpid()}/children").exists():
        everyone = {child.pid for child in psutil.Process().children(recursive=True)}
        return everyone - warm.nursery_pids()
    found: set[int] = set()
    todo = [os.getpid()]
    while todo:
        threads: list[Path] = []
        with suppress(OSError):  # the process has ended meanwhile
            threads = [*Path(f"/proc/{todo.pop()}/task").iterdir()]
        for thread in threads:
            with suppress(OSError):
                todo += map(int, (thread / "children").read_text().split())
        found.update(todo)
    return found - warm.nursery_pids()


def _scratch() -> set[Path]:
    return set(Path(tempfile.gettempdir()).glob("autotune-*"))


def _left_of(children: set[int], patience_s: float = 5.0) -> set[int]:
    """Return what runs besides; processes that were told to end may need a moment to be gone."""
    until = time.monotonic() + patience_s
    while (left := _children() - children) and time.monotonic() < until:
        time.sleep(0.05)
    return left
