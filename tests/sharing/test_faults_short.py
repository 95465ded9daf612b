"""One fault of each kind while three members of the real command share a study, in seconds.

They are processes of this machine that play hosts of their own, their seconds pass fifty times as
fast, and the study is served by the first of them. `make cluster` does this at length, and with
wall clocks that are wrong, which nobody here reads.
"""

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from time import sleep

import pytest

from autotune.tuning.joining import SERVED
from tests.cluster.study_facts import facts
from tests.docs.pages import ROOT
from tests.rigging import free_port, wait_for
from tests.sharing.relay import relay_to

pytest.importorskip("grpc", reason="needs the extra grpc")
pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

SPEED = 50  # beats of 0.2 s
FAULT_S = 1.5  # seven beats: the others take a member for dead that is silent for so long
STUDY = "short"
HOSTS = ("ada", "bob", "cyd")
SEARCH = ("--name", STUDY, "--budget", "8m", "--force", "train.py")


class Members:
    """Members on hosts that are played, each in its folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *words: str) -> None:
        work = self.folder / name
        work.mkdir(exist_ok=True)
        (work / "train.py").write_text("print('trains')\n")
        env = {
            **os.environ,
            "SCRIPTED_SPEED": str(SPEED),
            "SCRIPTED_HOST": name,
            "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[1:]]),
        }
        with (work / "log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "tests.cluster.scripted_cli", *words],
                cwd=work, env=env, stdin=subprocess.DEVNULL, stdout=log, stderr=log,
            )  # fmt: skip

    def kill_and_resume(self, name: str) -> None:
        self.processes[name].kill()
        self.processes[name].wait()
        self.start(name, "resume", f"{STUDY}-{name}")

    def told(self, *words: str) -> str:
        """Return what the command prints for somebody who is no member."""
        return subprocess.run(
            [sys.executable, "-m", "autotune", *words], cwd=self.folder,
            capture_output=True, text=True, timeout=60, check=True,
        ).stdout  # fmt: skip

    def said(self) -> str:
        return "\n".join((self.folder / name / "log").read_text() for name in self.processes)


@contextmanager
def members_in(folder: Path) -> Iterator[Members]:
    members = Members(folder)
    try:
        yield members
    finally:
        for process in members.processes.values():
            process.kill()
            process.wait()


def test_one_fault_of_each_kind_leaves_one_truth(tmp_path: Path) -> None:
    port, served = free_port(), tmp_path / "ada" / ".autotune" / f"{STUDY}-ada" / SERVED

    def sql(query: str) -> list[list[str]]:
        with closing(sqlite3.connect(served)) as database:
            return [[*map(str, row)] for row in database.execute(query)]

    def knows(member: str) -> bool:
        try:
            return bool(
                sql(f"select 1 from study_user_attributes where key like 'member:{member}-%'")
            )
        except sqlite3.OperationalError:  # there are no tables yet
            return False

    with relay_to(port) as link, members_in(tmp_path) as members:
        members.start("ada", "search", "--serve", str(port), *SEARCH)
        members.start("bob", "search", "--storage", f"grpc://127.0.0.1:{link.port}", *SEARCH)
        members.start("cyd", "search", "--storage", f"grpc://127.0.0.1:{port}", *SEARCH)
        assert wait_for(lambda: all(map(knows, HOSTS)), 60), members.said()
        where = ("--storage", f"grpc://127.0.0.1:{port}", "--name", STUDY)
        shown = json.loads(members.told("show", *where, "--json"))
        lives = {one["host"]: one["life"] for one in shown["members"]}
        assert set(lives) == set(HOSTS)
        assert "living" in lives.values()
        link.cut()
        members.processes["cyd"].send_signal(signal.SIGSTOP)
        sleep(FAULT_S)
        members.processes["cyd"].send_signal(signal.SIGCONT)
        link.mend()
        members.kill_and_resume("cyd")
        members.kill_and_resume("ada")
        for process in members.processes.values():
            assert process.wait(90) in {0, 3}, members.said()
    facts(sql, STUDY).check()
