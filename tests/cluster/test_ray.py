"""The executor ``ray`` on two nodes of a Ray cluster on this machine: correctness, no speed."""

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from time import monotonic, sleep
from typing import Any

import pytest

pytestmark = [
    pytest.mark.timeout(600),
    pytest.mark.skipif(find_spec("ray") is None, reason="needs ray"),
]
START_S = 120.0
# Submits the line of the arguments, and says in JSON what was started once all have ended
SUBMITTER = """
import json, signal, sys, time
from autotune.cli.executors import executor_of
from autotune.errors import UsageError
signal.signal(signal.SIGINT, signal.default_int_handler)  # also where a script's '&' ignores it
options, count, *line = sys.argv[1:]
executor = executor_of(f"ray {options}")
try:
    submission = executor.submit(line, int(count))
    while executor.unfinished():
        time.sleep(0.2)
    print(json.dumps({"handles": submission.handles}))
except UsageError as error:
    print(json.dumps({"refused": str(error)}))
"""
# Keeps what it finds around itself, and ends with the status that is asked for
MEMBER = """
import json, os, pathlib, sys
names = ("NODE", "OMP_NUM_THREADS", "CUDA_VISIBLE_DEVICES", "AUTOTUNE_STORAGE")
found = {"words": sys.argv[1:], "cwd": os.getcwd(), **{n: os.environ.get(n) for n in names}}
pathlib.Path(f"{os.environ['NODE']}.json").write_text(json.dumps(found))
sys.exit(os.environ["NODE"] == sys.argv[1])
"""


@pytest.fixture
def address() -> Iterator[str]:
    """The address of a cluster of two nodes with one core each."""
    # Sockets below it have paths of at most 107 bytes
    with TemporaryDirectory(prefix="ray-", dir="/tmp") as name:
        yield from _cluster(Path(name))


def _cluster(place: Path) -> Iterator[str]:
    ray = (sys.executable, "-m", "ray.scripts.scripts", "start", "--num-cpus=1", "--block")
    ports = ("--include-dashboard=false", "--disable-usage-stats")
    variables = {**os.environ, "RAY_TMPDIR": str(place), "CUDA_VISIBLE_DEVICES": "7"}
    variables.pop("AUTOTUNE_STORAGE", None)
    nodes = list[subprocess.Popen[bytes]]()
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    starts: Sequence[Mapping[str, Any]] = (
        {"NODE": "a", "words": ("--head", f"--port={port}", *ports)},
        {"NODE": "b", "words": (f"--address=127.0.0.1:{port}",)},
    )
    try:
        for start in starts:
            with (place / f"{start['NODE']}.log").open("wb") as log:
                node = subprocess.Popen(
                    (*ray, "--node-ip-address=127.0.0.1", *start["words"]),
                    env={**variables, "NODE": start["NODE"]}, stdout=log, stderr=log,
                    start_new_session=True,
                )  # fmt: skip
            nodes.append(node)
            end = monotonic() + START_S
            while b"--block" not in (place / f"{start['NODE']}.log").read_bytes():
                assert monotonic() < end, (place / f"{start['NODE']}.log").read_text()
                assert node.poll() is None, (place / f"{start['NODE']}.log").read_text()
                sleep(0.5)
        yield f"127.0.0.1:{port}"
    finally:
        for node in reversed(nodes):
            node.terminate()
            node.wait(START_S)


def submitted(address: str, folder: Path, *words: str) -> Any:
    done = subprocess.run(
        (sys.executable, "-c", SUBMITTER, *words), cwd=folder, capture_output=True, text=True,
        env={**os.environ, "RAY_ADDRESS": address, "AUTOTUNE_STORAGE": "of the submitter"},
        timeout=200, check=True,
    )  # fmt: skip
    return json.loads(done.stdout.splitlines()[-1])


def test_each_node_runs_the_line_once_as_it_would_be_typed_there(
    address: str, tmp_path: Path
) -> None:
    line = (sys.executable, "-c", MEMBER)
    said = submitted(address, tmp_path, "--cpus=1", "2", *line, "none", "it's a 'word'")
    assert said["handles"] == ["task 1", "task 2"]
    for node in ("a", "b"):
        assert json.loads((tmp_path / f"{node}.json").read_text()) == {
            "words": ["none", "it's a 'word'"],
            "cwd": str(tmp_path),
            "NODE": node,
            "OMP_NUM_THREADS": None,  # which Ray sets in its own workers
            "CUDA_VISIBLE_DEVICES": "7",  # which Ray empties for a task without GPUs
            "AUTOTUNE_STORAGE": None,  # which everyone could read in Ray's own records
        }
    submitted(address, tmp_path, "", "2", *line, "b")  # where one fails, the wait ends as well


def test_members_are_asked_to_end_with_the_command_that_started_them(
    address: str, tmp_path: Path
) -> None:
    member = (
        "import pathlib, signal, sys, time\n"
        "told = pathlib.Path('told')\n"
        "def end(*_): told.write_text('ended'); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, end)\n"
        "told.write_text('runs')\n"
        "time.sleep(300)\n"
    )
    words = (sys.executable, "-c", SUBMITTER, "", "1", sys.executable, "-c", member)
    variables = {**os.environ, "RAY_ADDRESS": address}
    submitter = subprocess.Popen(words, cwd=tmp_path, env=variables, stderr=subprocess.DEVNULL)
    for state, end in (("runs", None), ("ended", signal.SIGINT)):
        if end is not None:
            submitter.send_signal(end)
            submitter.wait(START_S)
        until = monotonic() + START_S
        while not (told := tmp_path / "told").exists() or told.read_text() != state:
            assert monotonic() < until, state
            sleep(0.2)


def test_more_workers_than_nodes_are_refused(address: str, tmp_path: Path) -> None:
    said = submitted(address, tmp_path, "", "3", "true")
    assert said["refused"].startswith("3 workers need 3 nodes with 1 cores and 0 GPUs free")
