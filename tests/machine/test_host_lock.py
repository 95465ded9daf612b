import os
import re
import secrets
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import pytest

from autotune.errors import UsageError
from autotune.machine import host_lock
from autotune.machine.host_lock import held
from autotune.machine.kernel_files import cpu_list

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="abstract sockets are Linux's")
HOLD = """
import sys
from autotune.machine import host_lock
host_lock.NAMES = chr(0) + sys.argv[1]
with host_lock.held(sys.argv[2:]):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def names(monkeypatch: pytest.MonkeyPatch) -> str:
    """Names of this test's own: other tests run on this host."""
    name = f"autotune-test-{secrets.token_hex(8)}/"
    monkeypatch.setattr(host_lock, "NAMES", f"\0{name}")
    return name


@pytest.fixture
def four_cores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> set[int]:
    """Four cores of two hyperthreads each; the test says which of the CPUs may be used."""
    allowed = set[int]()
    (tmp_path / "online").write_text("0-7\n")
    for cpu in range(8):
        (topology := tmp_path / f"cpu{cpu}/topology").mkdir(parents=True)
        (topology / "thread_siblings_list").write_text(f"{cpu % 4},{cpu % 4 + 4}\n")
    monkeypatch.setattr(host_lock, "CPUS", tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _process: allowed)
    return allowed


def test_one_member_measures_on_a_host_and_the_second_is_told_which_process_does(
    names: str,
) -> None:
    line = [sys.executable, "-c", HOLD, names]
    with subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        for _ in range(3):  # who asks changes nothing
            with pytest.raises(UsageError) as refused, held(()):
                pass
        said = str(refused.value)
        assert f"(process {other.pid}) has taken this machine to measure" in said
        assert said.endswith(f"or end it: kill {other.pid}")
        assert len(said.splitlines()) == 1
        other.kill()  # in whatever way it ends
    with held(()):
        pass


def test_members_with_gpus_run_side_by_side_if_each_has_cores_of_its_own(
    four_cores: set[int],
) -> None:
    def member(locks: ExitStack, cpus: set[int], *gpus: str) -> str:
        four_cores.clear()
        four_cores.update(cpus)
        try:
            locks.enter_context(held(gpus))
        except UsageError as error:
            return str(re.findall(r"has taken (.*?) (?:of this|to measure)", str(error))[0])
        return "held"

    with ExitStack() as locks:
        assert member(locks, {0, 4}, "GPU-a") == "held"
        assert member(locks, {1, 2}, "GPU-b") == "held"
        assert member(locks, {3, 7}, "GPU-b") == "GPU GPU-b"
        assert member(locks, {3, 4}, "GPU-c") == "core 0", "a hyperthread of the first one's core"
        assert member(locks, {3}, "GPU-c") == "held", "what was refused left nothing locked"
        assert member(locks, {3}) == "this machine", "without a GPU it takes all cores"
    with ExitStack() as locks:
        assert member(locks, {0}) == "held"
        assert member(locks, {3}, "GPU-c") == "core 3", "whose memory's bandwidth it would share"


def test_lists_of_cpus_are_read_as_the_kernel_writes_them() -> None:
    for text, cpus in {
        "0-3,8\n": {0, 1, 2, 3, 8},
        "5\n": {5},
        "\n": set[int](),
        "": set[int](),
        "of another kind": set[int](),
    }.items():
        assert cpu_list(text) == cpus
