"""Two machines search a real program together, trained by real processes behind the real fence."""

import os
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path
from time import monotonic, sleep

import pytest
import yaml

from tests.cluster.conftest import Tell
from tests.cluster.hosts import Host, Network
from tests.cluster.postgres import PASSWORD, Postgres
from tests.cluster.searches import Searches
from tests.cluster.storages import OnPostgres
from tests.cluster.study_facts import facts
from tests.docs.pages import ROOT

PROGRAM = ROOT / "examples" / "digits_cnn" / "train.py"
AUTOTUNE = (sys.executable, "-m", "autotune")
BUDGET_S = 180.0


@pytest.mark.timeout(900)
def test_two_machines_with_a_core_each_share_the_search_of_a_real_program(
    place: Path, tell: Tell
) -> None:
    if missing := [one for one in ("sklearn", "torchvision") if find_spec(one) is None]:
        pytest.skip(f"needs {', '.join(missing)}")
    cores = sorted(os.sched_getaffinity(0))
    with Network(place) as network:
        server = Postgres(network.host("db"))
        server.start()
        hosts = [network.host(name) for name in ("ada", "bob")]
        before = [(_processes(host), _mounts(host)) for host in hosts]
        for number, host in enumerate(hosts):
            host.core = cores[number % len(cores)]
            shutil.copy(PROGRAM, host.work)
        searches = Searches(
            "digits", OnPostgres(server), 1.0, BUDGET_S, hosts, command=AUTOTUNE, options=()
        )
        for host in hosts:
            searches.start(host)
        until_s, arguments = monotonic() + 4 * BUDGET_S, set[str]()
        while searches.running and monotonic() < until_s:
            arguments.update(one for host in hosts for one in _processes(host))
            sleep(5.0)
        searches.wait(until_s)
        assert any("autotune search" in one for one in arguments)
        assert not [one for one in arguments if PASSWORD in one]
        found = facts(server.sql, "digits")
        if found.running or found.gaps:  # a busy machine ends before all is delivered
            searches.deliver(())
            found = facts(server.sql, "digits")
        answers = searches.answers(())
        recommended = {answer for answer in answers.values() if answer}
        tell(
            {
                "storage": "PostgreSQL",
                "failed": "nothing, real trainings",
                "faults": 0,
                "members": len(answers),
                "answers": len(recommended),
                "unconfirmed": [*answers.values()].count(None),
                **found.row,
                "claimed by": " | ".join(" and ".join(_machines(host)) or "-" for host in hosts),
            }
        )
        found.check()
        assert len(recommended) <= 1, searches.told(hosts)
        for host in hosts:
            _check_what_is_said(host, searches, answers[host.name] is not None)
        assert [(_processes(host), _mounts(host)) for host in hosts] == before


def _check_what_is_said(host: Host, searches: Searches, is_faster: bool) -> None:
    """The file and the verdict name both machines, or say honestly that there is no such claim."""
    said = searches.log(host).read_text()
    assert PASSWORD not in said
    machines = _machines(host)
    assert (host.work / "best.yaml").exists() is is_faster, said
    if set(machines) == {one.name for one in searches.hosts}:
        assert "on another machine like these" in said, said
    elif is_faster:
        assert "measured on this machine only" in said or "so each has its own" in said, said


def _machines(host: Host) -> list[str]:
    """Return the machines that a host's best.yaml names; none without such a file."""
    path = host.work / "best.yaml"
    about = yaml.safe_load(path.read_text()) if path.exists() else {}
    return list(about.get("machines", ()))


def _processes(host: Host) -> list[str]:
    """Return the commands that run on a host, but for the one that tells them."""
    told = host.run("ps", "-e", "-o", "args=").splitlines()
    return sorted(one for one in told if "ps -e" not in one)


def _mounts(host: Host) -> list[str]:
    return host.run("cat", "/proc/self/mounts").splitlines()
