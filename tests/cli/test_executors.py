"""Executors: what they start, print and refuse. Slurm and Ray themselves are in tests/cluster."""

import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from typer.testing import CliRunner

from autotune.cli.app import app
from autotune.cli.executors import MEMBERS, executor_of
from autotune.cli.executors.command import Command
from autotune.cli.executors.local import Local, physical_cores
from autotune.cli.executors.slurm import Slurm
from autotune.errors import UsageError
from autotune.machine import host_lock
from autotune.program.config import Config
from autotune.results.finding import Finding
from autotune.results.shared_answer import GroupAnswer
from autotune.sharing.standing import GroupStanding, Life, MemberStanding, Standing
from tests.made import A100, make_hardware

LINE = (
    "autotune", "search", "--storage", "postgresql://me@db/x", "--name", "it's", "--", "train.py",
    "--lr", "$1", ": #{{ x }}",
)  # fmt: skip
QUOTED = shlex.join(LINE)


def until(holds: Callable[[], object]) -> None:
    end = time.monotonic() + 60.0
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_what_is_typed_wrongly_is_refused_with_what_to_type() -> None:
    cases = {
        "slrum": "There is no executor 'slrum'. Did you mean 'slurm'?",
        "local --workers=2": "'local' takes nothing",
        "slurm": "--executor 'slurm --cpus-per-task=8",
        "slurm --gres=gpu:1": "--executor 'slurm --cpus-per-task=8",
        "slurm -c two": "argument --cpus-per-task/-c: invalid int value: 'two'",
        "slurm -c 2 'x": "No closing quotation",
        "slurm -c 2 --array=1-3": "--executor slurm: --array cannot be set",
        "slurm -c 2 --signal=TERM": "--signal cannot be set",
        "slurm -c 2 -N 2": "--nodes cannot be set",
        "slurm -c 2 -N2": "--nodes cannot be set",
        "slurm -c 2 -a1-3": "--array cannot be set",
        "slurm -c 2 --clusters=b": "one task of this cluster",
        "ray --gpu-count=1": "unrecognized arguments: --gpu-count=1",
        "ray 'x": "No closing quotation",
        "command": "the template has no {line}. Type: --executor",
        "command qsub x": "the template has no {line}",
        "command qsub 'x {line}": "No closing quotation",
        "kubernetes --cpus=8": "required: --image",
        "kubernetes --image=x": "required: --cpus",
        "kubernetes --cpus=8 'x": "No closing quotation",
    }
    for typed, said in cases.items():
        with pytest.raises(UsageError) as caught:
            executor_of(typed)
        assert said in str(caught.value), typed


def test_each_executor_shows_itself_as_it_is_typed() -> None:
    for name, member in MEMBERS.items():
        (typed,) = shlex.split(member.usage)
        assert isinstance(executor_of(typed), member), name


# --- slurm ----------------------------------------------------------------------------------------


def test_a_batch_script_holds_the_line_its_cores_and_the_options_of_slurm_alone() -> None:
    for cores in ("--cpus-per-task=8", "--cpus-per-task 8", "-c 8", "-c8"):
        executor = executor_of(f"slurm {cores} --partition=gpu --time=30")
        assert isinstance(executor, Slurm)
        *directives, start = executor.script(LINE, 4).splitlines()
        assert start == f"srun --cpus-per-task=8 {QUOTED}"
        assert directives == [
            "#!/bin/bash",
            "#SBATCH --job-name=autotune",
            "#SBATCH --array=1-4",
            "#SBATCH --nodes=1",
            "#SBATCH --ntasks=1",
            "#SBATCH --requeue",
            "#SBATCH --open-mode=append",
            "#SBATCH --signal=USR1@120",
        ]


SBATCH = """#!/bin/bash
printf '%s\\n' "$@" > typed; cat > script
[ -z "$REFUSES" ] || { echo "sbatch: error: invalid partition specified: gpu" >&2; exit 1; }
echo "41;cluster"
"""
SQUEUE = """#!/bin/bash
[ -z "$UNKNOWN" ] || { echo "slurm_load_jobs error: Invalid job id specified" >&2; exit 1; }
[ -z "$DOWN" ] || { echo "slurm_load_jobs error: Unable to contact slurm controller" >&2; exit 1; }
echo "41_1 RUNNING"; echo "41_2 PENDING"; echo "41_3 NODE_FAIL"; echo "41_4 TIMEOUT"
echo "41_5 COMPLETING"
"""


def test_a_job_array_is_submitted_and_its_members_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {"sbatch": SBATCH, "squeue": SQUEUE}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    executor = executor_of("slurm --partition=gpu -c 2")
    found = executor.submit(LINE, 6)
    jobs = [f"job 41_{n}" for n in range(1, 7)]
    assert [*found.handles] == jobs
    assert "'scancel --signal=USR1 41'" in found.ending
    assert (tmp_path / "typed").read_text().splitlines() == [
        "--parsable", "--partition=gpu", "-c", "2",
    ]  # fmt: skip
    assert QUOTED in (tmp_path / "script").read_text()
    assert executor.unfinished() == [jobs[0], jobs[1], jobs[4]]
    monkeypatch.setenv("UNKNOWN", "1")
    assert executor.unfinished() == []
    monkeypatch.delenv("UNKNOWN")
    monkeypatch.setenv("DOWN", "1")
    assert executor.unfinished() is None, "of a controller that is away nothing follows"
    monkeypatch.setenv("REFUSES", "1")
    with pytest.raises(UsageError, match="sbatch refuses: sbatch: error: invalid partition"):
        executor.submit(LINE, 4)
    monkeypatch.setenv("PATH", str(tmp_path / "nowhere"))
    with pytest.raises(UsageError, match="'sbatch' cannot be started: No such file"):
        executor.submit(LINE, 4)


def test_a_job_of_an_array_that_starts_after_the_answer_says_so_and_ends_well(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "train.py").touch()
    monkeypatch.chdir(tmp_path)
    left = MemberStanding("a", "node1", Life.LEFT, "", "8 cores", "g")
    answer = GroupAnswer("g", "8 cores", Finding.NOTHING_FOUND)
    group = GroupStanding(
        "g", "8 cores", ("node1",), Config({}), 1, 0, (), None, "", {}, (), answer
    )
    over = Standing("train.py", (left,), (group,))
    words = ["search", "--storage", "grpc://127.0.0.1:1", "--name", "x", "train.py"]
    searched = list[object]()

    def search(**_: object) -> None:
        searched.append(1)
        sys.exit(7)

    monkeypatch.setattr("autotune.api.search", search)
    for name, found, status in (
        ("SLURM_ARRAY_TASK_ID", over, 0),
        ("SLURM_ARRAY_TASK_ID", replace(over, groups=(replace(group, answer=None),)), 7),
        ("SLURM_ARRAY_TASK_ID", replace(over, members=(replace(left, life=Life.QUIET),)), 7),
        ("BY_HAND", over, 7),
    ):
        observer = SimpleNamespace(look=lambda found=found: found)
        monkeypatch.setattr("autotune.cli.shared_study.observer_of", lambda *_, o=observer: o)
        monkeypatch.setenv(name, "3")
        done = CliRunner().invoke(app, words)
        assert done.exit_code == status, done.output
        assert ("starts after the study 'x' was answered" in done.stderr) is (status == 0)
        monkeypatch.delenv(name)
    assert len(searched) == 3


# --- command --------------------------------------------------------------------------------------


def test_a_template_gets_the_line_as_words_or_quoted_within_a_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    keeps = "import sys, json, os; json.dump(sys.argv[1:], open(f'{os.getpid()}', 'w'))"
    runs = f"{shlex.quote(sys.executable)} -c {shlex.quote(keeps)}"
    for template, words in {
        f"{runs} -b y {{line}}": ["-b", "y", *LINE],
        f"{runs} '--wrap={{line}}; rm x'": [f"--wrap={QUOTED}; rm x"],
        shlex.quote(f"{runs} {{line}}"): [*LINE],
    }.items():
        executor = executor_of(f"command {template}")
        executor.submit(LINE, 2)
        assert isinstance(executor, Command)
        for member in executor._members:
            member.wait()
        files = [*tmp_path.iterdir()]
        assert len(files) == 2
        for file in files:
            assert yaml.safe_load(file.read_text()) == words
            file.unlink()
        assert executor.unfinished() is None, "whoever has it in a queue starts it later"


def test_a_template_that_fails_each_time_has_failed() -> None:
    executor = executor_of("command false {line}")
    executor.submit(LINE, 2)
    until(lambda: executor.unfinished() == ())
    with pytest.raises(UsageError, match="'no-qsub' cannot be started: No such file"):
        executor_of("command no-qsub {line}").submit(LINE, 1)


# --- local ----------------------------------------------------------------------------------------


def test_members_on_one_machine_get_gpus_and_cores_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    cores = len(physical_cores(os.sched_getaffinity(0)))
    gpus = tuple(A100 for _ in range(max(2, cores)))
    own = os.sched_getaffinity(0)
    told = "import os; print(os.environ.get('CUDA_VISIBLE_DEVICES'), *os.sched_getaffinity(0))"
    executor = Local("", make_hardware(gpus=gpus))
    found = executor.submit((sys.executable, "-c", told), cores)
    until(lambda: not executor.unfinished())
    assert found.ending.startswith("'kill -USR1 ")
    assert os.sched_getaffinity(0) == own
    used = list[str]()
    for number in range(1, cores + 1):
        seen, *allowed = Path(f"autotune-worker-{number}.log").read_text().split()
        assert len(seen.split(",")) == len(gpus) // cores
        used += allowed
    assert len(used) == len({*used}), "no core has two members"
    with monkeypatch.context() as patch:
        patch.chdir(tmp_path)
        Path("autotune-worker-1.log").unlink()
        Path("autotune-worker-1.log").mkdir()
        with pytest.raises(UsageError, match=r"'autotune-worker-1.log' cannot be opened: Is a dir"):
            Local("", make_hardware()).submit(LINE, 1)
    with pytest.raises(UsageError, match=r"need \d+ cores, one each; it has"):
        Local("", make_hardware(gpus=(A100,) * (cores + 1))).submit(LINE, cores + 1)
    with pytest.raises(UsageError, match="2 workers on this machine need 2 GPUs, one each; it has"):
        Local("", make_hardware()).submit(LINE, 2)


def test_threads_of_one_core_stay_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for cpu in range(4):
        folder = tmp_path / f"cpu{cpu}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(f"{cpu % 2},{cpu % 2 + 2}\n")
    monkeypatch.setattr(host_lock, "CPUS", tmp_path)
    assert physical_cores({0, 1, 2, 3}) == [{0, 2}, {1, 3}]
    assert physical_cores({1, 2, 7}) == [{1}, {2}, {7}]


# --- kubernetes -----------------------------------------------------------------------------------


def test_a_manifest_has_a_pod_a_worker_and_its_storage_by_reference() -> None:
    executor = executor_of("kubernetes --image=train:1 --cpus=8 --gpus=1 --memory=32Gi")
    found = executor.submit(LINE, 4)
    assert not found.handles
    job, _, server = yaml.safe_load_all(found.manifest)
    spec = job["spec"]
    assert (spec["completionMode"], spec["completions"], spec["parallelism"]) == ("Indexed", 4, 4)
    (pod,) = spec["template"]["spec"]["containers"]
    assert pod["command"] == [*LINE], "whatever YAML and the template would read in it"
    secret = {"secretKeyRef": {"name": "autotune-storage", "key": "url"}}
    assert pod["env"] == [{"name": "AUTOTUNE_STORAGE", "valueFrom": secret}]
    assert pod["resources"]["limits"] == {"cpu": "8", "memory": "32Gi", "nvidia.com/gpu": "1"}
    assert server["kind"] == "StatefulSet"


# --- passwords ------------------------------------------------------------------------------------


def test_workers_without_a_password_are_warned_of_and_none_is_passed_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    slurm, ray = executor_of("slurm -c 2"), executor_of("ray")
    monkeypatch.setenv("HOME", str(tmp_path))
    for name, value in {"PGPASSFILE": "/x", "AUTOTUNE_STORAGE": "postgresql://me:pw@db/x"}.items():
        monkeypatch.setenv(name, "")
        assert "Neither AUTOTUNE_STORAGE nor PGPASSFILE" in slurm.password_note()
        monkeypatch.setenv(name, value)
        assert not slurm.password_note()
        assert "'ray start'" in ray.password_note(), "whose environment it is"
        monkeypatch.delenv(name)
    (tmp_path / ".pgpass").write_text("db:*:*:me:secret")
    assert not slurm.password_note()


def test_the_extra_of_an_engine_is_named_where_it_is_missing() -> None:
    code = (
        "import sys; sys.modules['ray'] = None\n"
        "from autotune.cli.executors import executor_of\n"
        "executor_of('ray').submit(['x'], 1)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "UsageError: Ray is missing: pip install 'autotune-torch[ray]'" in done.stderr
