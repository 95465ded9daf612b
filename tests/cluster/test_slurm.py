"""The executor ``slurm`` on a real cluster of two nodes: arrays, cores, requeue, and USR1."""

import json
import shlex
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import pytest

from autotune.cli.executors import Executor, Submission, executor_of
from autotune.tuning.storage.search_dir import SearchDir
from tests.cluster.hosts import Network
from tests.cluster.slurm import LOGIN, NODES, Slurm, until

pytestmark = pytest.mark.timeout(600)
TRAIN = """
import time, torch
class Items(torch.utils.data.Dataset):
    def __len__(self):
        return 10 ** 6
    def __getitem__(self, number):
        time.sleep(0.002)
        return torch.ones(4)
net = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for batch in torch.utils.data.DataLoader(Items(), batch_size=8):
    optimizer.zero_grad()
    net(batch).sum().backward()
    optimizer.step()
"""
# Says its number, how often it was started before, and its cores; ends by USR1
MEMBER = """
import os, signal, sys, time
signal.signal(signal.SIGUSR1, lambda *_: sys.exit(print("left", flush=True)))
names = ("SLURM_ARRAY_TASK_ID", "SLURM_RESTART_COUNT")
print(*(os.environ.get(name, "0") for name in names), len(os.sched_getaffinity(0)), flush=True)
time.sleep(600)
"""
# The command whose rigs are scripted, by a file that other hosts start, too
SCRIPTED = """
import runpy
runpy.run_module("tests.cluster.scripted_cli", run_name="__main__")
"""


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Slurm]:
    with Slurm(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


@pytest.fixture
def work(slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder from which jobs are submitted, and in which they run."""
    for name, value in slurm.variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").write_text(TRAIN)
    return tmp_path


def submitted(options: str, line: Sequence[str], count: int) -> tuple[Executor, Submission, str]:
    """Submit a line, and return the number of its job as well."""
    executor = executor_of(f"slurm {options}")
    submission = executor.submit(line, count)
    return executor, submission, submission.handles[0].removeprefix("job ").partition("_")[0]


def has_ended(executor: Executor) -> bool:
    return executor.unfinished() == []


def state(slurm: Slurm, job: str, number: int) -> str:
    """Return what Slurm says of a member, such as ``RUNNING``."""
    return slurm.said("squeue", "-h", "--states=all", "-j", f"{job}_{number}", "-o", "%T")


def said(work: Path, job: str, number: int) -> list[str]:
    """Return the lines of a member's log that the member itself has said."""
    path = work / f"slurm-{job}_{number}.out"
    lines = path.read_text().splitlines() if path.exists() else []
    return [line for line in lines if not line.startswith(("srun:", "slurmstepd"))]


def test_a_job_array_runs_the_line_once_a_member_with_the_cores_that_were_asked_for(
    slurm: Slurm, work: Path
) -> None:
    line = (sys.executable, "-c", "import os; print(len(os.sched_getaffinity(0)))", "it's a 'word'")
    for cores in ("1", "2"):
        executor, submission, job = submitted(f"--cpus-per-task={cores}", line, 2)
        assert len(submission.handles) == 2
        until(partial(has_ended, executor), "ended members")
        assert [said(work, job, number) for number in (1, 2)] == [[cores], [cores]]


def test_one_member_is_cancelled_alone_and_one_that_is_requeued_runs_again(
    slurm: Slurm, work: Path
) -> None:
    executor, submission, job = submitted("-c 1", (sys.executable, "-c", MEMBER), 3)
    until(lambda: all(said(work, job, number) for number in (1, 2, 3)), "members")
    assert executor.unfinished() == [*submission.handles]
    slurm.said("scancel", f"{job}_1")
    slurm.said("scontrol", "requeue", f"{job}_2")
    _, *living = submission.handles
    until(lambda: state(slurm, job, 2) == "PENDING", "requeued members")
    # Slurm waits two minutes before it starts a job again
    until(
        lambda: (
            slurm.said("scontrol", "update", f"JobId={job}_2", "StartTime=now")
            and state(slurm, job, 2) == "RUNNING"
        ),
        "members that run again",
    )
    until(lambda: said(work, job, 2)[-1:] == ["2 1 1"], "second starts")
    assert said(work, job, 2)[0] == "2 0 1", "the log of the first start is kept"
    assert executor.unfinished() == living
    ask = shlex.split(submission.ending.split("'")[1])
    assert ask[0] == "scancel"
    until(lambda: not slurm.said(*ask), "members that can be asked to leave")
    until(partial(has_ended, executor), "ended members")
    assert said(work, job, 3) == ["3 0 1", "left"]


def test_before_its_time_is_over_a_search_tells_what_it_found_and_blames_no_config(
    slurm: Slurm, work: Path, tell: Callable[[dict[str, object]], None]
) -> None:
    """Slurm sends USR1 to each process of the step: the search's, and those of its program."""
    search = "search --budget 9m --name timed -- train.py"
    line = (sys.executable, "-m", "autotune", *search.split())
    executor, _, job = submitted("-c 2 --time=3", line, 1)
    until(partial(has_ended, executor), "a start and an end", 500.0)
    log = "\n".join(said(work, job, 1))
    assert "Ending" in log, log
    records = SearchDir(work / ".autotune" / "timed").load_study().records
    ways = [record.ending.reason for record in records if record.ending is not None]
    assert not [way for way in ways if "USR1" in way and "asked to leave" not in way], ways
    result = json.loads((work / ".autotune" / "timed" / "result.json").read_text())
    tell({"slurm": "USR1 at the end of a job's time", "configs": len(records), "ends": ways})
    assert result["best"] is not None or len(records) == 1
    ended = "COMPLETED" if len(records) > 1 else "FAILED"  # ExitStatus.NOTHING_MEASURED
    assert state(slurm, job, 1) == ended, log


def test_workers_of_a_job_array_share_one_study_and_are_watched_to_its_answer(place: Path) -> None:
    """Each node is a host of its own; the study is served by the command that submits."""
    with Network(place) as network:
        folder = place / "slurm"
        folder.mkdir()
        with Slurm(folder, network) as cluster:
            login, work = network.hosts[LOGIN], place / "work"
            work.mkdir()
            (work / "train.py").write_text(TRAIN)
            (work / "autotune").write_text(f"#!{sys.executable}\n{SCRIPTED}")
            (work / "autotune").chmod(0o755)
            served = ("--serve", f"{login.address}:7777", "--name", "array", "--budget", "5m")
            asked = ("--workers", "2", "--executor", "slurm --cpus-per-task=2")
            line = (str(work / "autotune"), "search", *served, *asked)
            variables = {
                **cluster.variables, "SCRIPTED_SPEED": "12",
                "PYTHONPATH": str(Path(__file__).parents[2]),
            }  # fmt: skip
            shell = ("sh", "-c", 'cd "$0" && exec "$@"', str(work), *line, "train.py")
            command = login.start(*shell, log=place / "said", env=variables)
            status = command.wait(300)
            told = (place / "said").read_text()
            told += "\n".join(one.read_text() for one in work.glob("slurm-*"))
            assert status == 0, told
            assert cluster.said("squeue", "-h") == "", told
        for node in NODES:
            assert f"{node} has joined" in told, told
            assert f"{node} has left" in told, told
        assert "answer: " in told, told
