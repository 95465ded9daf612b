"""The launcher of one machine's ranks: what it starts, what it ends, and what it tells."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from autotune.rig.local_ranks import environment_of, parsed
from tests.rigging import is_running, wait_for

LAUNCHER = (sys.executable, "-P", "-m", "autotune.rig.local_ranks")
# Each rank tells its own process number and that of a child, in the name of a file
TELLS = """
import os, signal, subprocess, sys, time
from pathlib import Path
rank = int(os.environ["RANK"])
child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
Path(sys.argv[1], f"{rank} {os.getpid()} {child.pid}").touch()
while len(list(Path(sys.argv[1]).iterdir())) < 2:
    time.sleep(0.01)
"""


@contextmanager
def started(program: str, told: Path) -> Iterator[tuple[subprocess.Popen[bytes], list[int]]]:
    """Start a program in two ranks; gives the launcher and all processes that they have told."""
    told.mkdir()
    command = [*LAUNCHER, "--ranks", "2", "--", sys.executable, "-c", program, str(told)]
    with subprocess.Popen(
        command,
        stderr=subprocess.DEVNULL,
        # a suite that runs in the background hands on that Ctrl-C is ignored
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    ) as launcher:
        try:
            yield launcher, processes_of(told)
        finally:
            launcher.kill()


def processes_of(told: Path) -> list[int]:
    """Return the processes that two ranks have told, when both have."""
    assert wait_for(lambda: len([*told.iterdir()]) == 2), "the ranks do not start"
    return [int(number) for path in told.iterdir() for number in path.name.split()[1:]]


def are_gone(pids: list[int]) -> bool:
    return wait_for(lambda: not any(map(is_running, pids)))


def test_ranks_find_what_torchrun_documents_and_stay_on_loopback_unless_the_user_says_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = environment_of(1, 4, 29500, "run", "secret")
    names = {"RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "GROUP_RANK", "MASTER_PORT"}
    names |= {"GROUP_WORLD_SIZE", "ROLE_RANK", "ROLE_WORLD_SIZE", "ROLE_NAME"}
    names |= {f"TORCHELASTIC_{n}" for n in ("RUN_ID", "RESTART_COUNT", "MAX_RESTARTS")}
    assert names <= found.keys()
    assert (found["RANK"], found["WORLD_SIZE"], found["GROUP_RANK"]) == ("1", "4", "0")
    assert found["MASTER_ADDR"] == "127.0.0.1"
    assert {found[f"{by}_SOCKET_IFNAME"] for by in ("GLOO", "NCCL", "TP")} == {"lo"}
    monkeypatch.setenv("NCCL_SOCKET_IFNAME", "^docker0")
    found = environment_of(1, 4, 29500, "run", "secret")
    assert (found["NCCL_SOCKET_IFNAME"], found["GLOO_SOCKET_IFNAME"]) == ("^docker0", "lo")


def test_the_first_rank_alone_inherits_the_socket_and_what_is_passed_on() -> None:
    ours, passed = os.pipe()
    program = (
        "import os, sys\n"
        "ours = sorted(n for n in os.environ if n.startswith('AUTOTUNE_RANKS_'))\n"
        "fds = sorted(int(fd) for fd in os.listdir('/proc/self/fd'))[3:-1]\n"
        "rank, key = os.environ['RANK'], os.environ['AUTOTUNE_RANKS_KEY']\n"
        "sys.stdout.write(f'{rank} {len(ours)} {len(fds)} {key} {sys.argv[1:]}\\n')\n"
        f"if os.environ['RANK'] == '0': os.write({passed}, b'from the first')\n"
    )
    options = ("--ranks", "2", "--pass-fds", str(passed))
    command = [*LAUNCHER, *options, "--", sys.executable, "-c", program, "--", "--ranks"]
    done = subprocess.run(command, capture_output=True, text=True, check=True, pass_fds=[passed])
    os.close(passed)
    with os.fdopen(ours, "rb") as received:
        assert received.read() == b"from the first", "and nobody else holds it open"
    (rank, *first), (other, *second) = (line.split() for line in sorted(done.stdout.splitlines()))
    assert (rank, first[:2], other, second[:2]) == ("0", ["3", "3"], "1", ["1", "0"])
    assert first[2:] == second[2:]
    assert (len(first[2]), first[3:]) == (64, ["['--',", "'--ranks']"])


@pytest.mark.parametrize(
    ("way", "code"), [("sys.exit(3)", 3), ("os.kill(os.getpid(), signal.SIGKILL)", -9)]
)
def test_a_rank_that_fails_is_named_and_ends_the_others(
    tmp_path: Path, way: str, code: int
) -> None:
    told, codes = tmp_path / "told", tmp_path / "codes"
    told.mkdir()
    program = f"{TELLS}\nif rank == 1: {way}\ntime.sleep(300)"
    command = [*LAUNCHER, "--ranks", "2", "--codes", str(codes), "--", sys.executable, "-c"]
    done = subprocess.run([*command, program, str(told)], timeout=60, check=False)
    assert done.returncode == 1
    assert json.loads(codes.read_text()) == {"1": code}
    assert are_gone(processes_of(told)), "with all that they started"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_the_launcher_reaches_the_ranks_and_leaves_nothing(
    tmp_path: Path, number: signal.Signals
) -> None:
    with started(f"{TELLS}\ntime.sleep(300)", tmp_path / "told") as (launcher, pids):
        launcher.send_signal(number)
        assert launcher.wait(20) == 128 + number
        assert are_gone(pids)


def test_ranks_end_by_a_second_signal_or_with_a_launcher_that_is_killed(tmp_path: Path) -> None:
    deaf = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"
    with started(f"{deaf}\n{TELLS}\ntime.sleep(300)", tmp_path / "deaf") as (launcher, pids):
        launcher.send_signal(signal.SIGINT)
        with pytest.raises(subprocess.TimeoutExpired):
            launcher.wait(0.5)
        launcher.send_signal(signal.SIGINT)
        launcher.wait(20)
        assert are_gone(pids)
    alone = TELLS.replace(
        "child = ", "child = __import__('types').SimpleNamespace(pid=os.getpid()) #"
    )
    with started(f"{alone}\ntime.sleep(300)", tmp_path / "alone") as (launcher, pids):
        launcher.kill()
        assert are_gone(pids)


def test_a_command_line_that_starts_nothing_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    for line, said in (
        ("--ranks 2 --", "end with -- COMMAND"),
        ("--ranks 2 python", "end with -- COMMAND"),
        ("--ranks 0 -- python", "--ranks 0 starts nothing"),
    ):
        with pytest.raises(SystemExit):
            parsed(line.split())
        assert said in capsys.readouterr().err
