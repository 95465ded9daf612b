"""Shared searches on hosts of a network: members of the real command, and what is done to them."""

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Protocol

from autotune.cli.exit_status import ExitStatus
from autotune.results.finding import Finding
from autotune.tuning.storage.search_dir import FILE
from tests.cluster.hosts import Host, send
from tests.docs.pages import ROOT
from tests.rigging import wait_for

SCRIPTED = (sys.executable, "-m", "tests.cluster.scripted_cli")
# Without torch's own threads or any process, a search tries these within minutes, some of them in
# fresh processes that members hand out to one another
SPACE = """\
version: 1
knobs:
  workers: auto
  precision: auto
  compile: auto
  devices: auto
  flush_denormal: auto
  ddp_options: auto
"""
ENDED_WELL = {ExitStatus.DONE, ExitStatus.NOTHING_MEASURED}


class Storage(Protocol):
    """Where a study is kept.

    Attributes:
        kind: What people call it.
    """

    kind: str

    def words(self, host: Host) -> tuple[str, ...]:
        """Return the options that tell a host's member where the study is."""

    def env(self, host: Host) -> dict[str, str]:
        """Return the variables that it needs."""

    def must_return(self, host: Host) -> bool:
        """Return whether a host's member serves the others, and goes on when it was killed."""

    def restart(self, searches: "Searches", away_s: float) -> None:
        """End each process of the server with SIGKILL, and start it again after some seconds."""

    def sql(self, query: str) -> list[list[str]]:
        """Return the rows of a query."""


@dataclass
class Searches:
    """One study, and the members that search it together.

    Attributes:
        speed: How many times as fast as a clock the members' seconds pass.
        budget_s: That of each member, in its own seconds.
        hosts: Those on which members run.
        processes: The newest member of each host.
        starts: How many members were started; none measures with the random numbers of another.
        command: What members run, before the words of ``search`` or ``resume``.
        options: Those of ``search`` besides storage, name and budget.
    """

    name: str
    storage: Storage
    speed: float
    budget_s: float
    hosts: Sequence[Host]
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    starts: int = 0
    command: Sequence[str] = SCRIPTED
    options: Sequence[str] = ("--space", "space.yaml")

    def start(self, host: Host, *, resumes: bool = False) -> None:
        """Start a member on a host, or go on with the one that was killed there."""
        work = host.work
        if not (work / "train.py").exists():
            (work / "train.py").write_text("print('trains')\n")
            (work / "space.yaml").write_text(SPACE)
        folder = self.newest(host)
        if folder is not None and (resumes or self.storage.must_return(host)):
            words = ["resume", folder.name, "--force"]
        else:
            asked = ("--name", self.name, "--budget", f"{self.budget_s:.0f}s", *self.options)
            words = ["search", *self.storage.words(host), *asked, "--force", "train.py"]
        self.starts += 1
        env = {
            "SCRIPTED_SPEED": f"{self.speed:g}",
            "SCRIPTED_SEED": str(self.starts),
            "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path[1:]]),
            "NO_COLOR": "1",
            **self.storage.env(host),
        }
        log = self.log(host)
        with log.open("a") as said:
            said.write(f"\n$ {' '.join(words)}\n")
        self.processes[host.name] = host.start(*self.command, *words, log=log, env=env)

    def log(self, host: Host) -> Path:
        """Return the file that has what the members of a host say."""
        return host.disk / f"{self.name}.log"

    def folders(self, host: Host) -> list[Path]:
        """Return the run folders of a host's members in this study, the oldest first.

        One that was killed before it had a record has none.
        """
        records = (host.work / ".autotune").glob(f"{self.name}*/{FILE}")
        found = (record.parent for record in records)
        return sorted(found, key=lambda one: one.stat().st_ctime_ns)

    def newest(self, host: Host) -> Path | None:
        """Return the run folder of the newest member."""
        return next(iter(reversed(self.folders(host))), None)

    def is_running(self, host: Host) -> bool:
        """Return whether a host's member has not ended."""
        return host.name in self.processes and self.processes[host.name].poll() is None

    @property
    def running(self) -> list[Host]:
        """The hosts whose members have not ended."""
        return [host for host in self.hosts if self.is_running(host)]

    def kill(self, host: Host) -> None:
        """End a member with SIGKILL."""
        process = self.processes[host.name]

        def is_gone() -> bool:
            send(process, signal.SIGKILL)  # one that was just started may not run yet
            return process.poll() is not None

        assert wait_for(is_gone, 60)

    def wait(self, until_s: float) -> None:
        """Wait until all members have ended, at most until then by ``monotonic()``."""
        while self.running:
            assert monotonic() < until_s, f"goes on for ever: {self.told(self.running)}"
            sleep(0.2)

    def deliver(self, killed: Collection[str]) -> None:
        """Let members that have ended go on by ``resume``, which delivers what waits.

        Members that were killed for good do not.
        """
        for host in self.hosts:
            if host.name not in killed:
                self.start(host, resumes=True)
        self.wait(monotonic() + 120)

    def result(self, host: Host) -> dict[str, Any]:
        """Return result.json of a host's newest member."""
        folder = self.newest(host)
        assert folder is not None
        found: dict[str, Any] = json.loads((folder / "result.json").read_text())
        return found

    def answers(self, killed: Collection[str]) -> dict[str, object]:
        """Return what the members that were not killed for good recommend, by host.

        They must have ended well. None is the honest answer of one that had no time to confirm.
        """
        found = dict[str, object]()
        for host in self.hosts:
            if host.name in killed:
                continue
            status = self.processes[host.name].poll()
            assert status in ENDED_WELL, f"ended with {status}: {self.told([host])}"
            result = self.result(host)
            best = result["best"] if result["finding"] == Finding.FASTER else None
            found[host.name] = best and tuple(sorted(best["config"].items()))
        return found

    def told(self, hosts: Sequence[Host]) -> str:
        """Return the end of what members of some hosts have said."""
        logs = ((host, self.log(host)) for host in hosts)
        return "\n".join(
            f"{host.name}:\n{log.read_text()[-3000:]}" for host, log in logs if log.exists()
        )


def moments(dice: random.Random, count: int, first_s: float, last_s: float) -> list[float]:
    """Return random moments between two, in order."""
    return sorted(dice.uniform(first_s, last_s) for _ in range(count))
