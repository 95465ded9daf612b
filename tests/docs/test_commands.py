"""Every command line of README and docs is run; see ``project.py`` for what is real in it."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
import webbrowser
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest
from typer.testing import CliRunner

from autotune.cli.app import app
from autotune.cli.exit_status import ExitStatus
from tests.docs import several_machines
from tests.docs.pages import ROOT, blocks_in
from tests.docs.project import (
    RANKS,
    SLOW,
    custom_knob_installed,
    give_a_larger_batch,
    make_project,
    records_in_memory,
    scripted,
)

# What srun sets for the second of two nodes of a job (tests/rig/test_torchrun_plan.py)
SLURM_STEP = {
    "SLURM_JOB_ID": "4711",
    "SLURM_PROCID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_NUM_NODES": "2",
    "SLURM_STEP_NUM_TASKS": "2",
    "SLURM_STEP_NODELIST": "gpu[03-04]",
}

# Of the first line of each verdict (results/verdict.py)
VERDICT = re.compile("confirmed in fresh processes|nothing was changed|this machine's limit")


def _lines() -> Iterator[tuple[str, str]]:
    for block in blocks_in("console"):
        for line in block.text.splitlines():
            yield block.place, line


def _once() -> list[str]:
    """Return each command once, whatever comment follows it."""
    words = (shlex.split(line, comments=True) for _, line in _lines())
    return sorted({shlex.join(found) for found in words if found})


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("docs") / "project"
    folder.mkdir()
    make_project(folder)
    return folder


@pytest.fixture
def project(made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of the folder with the programs and the search, as the current one."""
    folder = shutil.copytree(made, tmp_path / "project")
    monkeypatch.chdir(folder)
    # As in an activated environment, where 'python' is the interpreter that autotune runs under
    monkeypatch.setenv("PATH", str(Path(sys.executable).parent), prepend=os.pathsep)
    return folder


class Replaced(Exception):
    """The command would have replaced its process by this one."""

    def __init__(self, argv: Sequence[str]) -> None:
        super().__init__(argv)
        self.argv = tuple(argv)


def _replace(_path: str, argv: Sequence[str], _environment: object = None) -> None:
    raise Replaced(argv)


@pytest.mark.parametrize("line", _once())
def test_a_command_of_the_pages_works_as_it_is_written(
    line: str, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = shlex.split(line)
    while re.fullmatch(r"[A-Z_]+=.*", words[0]):
        monkeypatch.setenv(*words.pop(0).split("=", 1))
    assert words[0] in RUNNERS, f"add to RUNNERS how a test runs '{words[0]}'"
    RUNNERS[words[0]](words[1:], project, monkeypatch)


def _autotune(words: Sequence[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if words[0] == "search":  # one that reads no earlier search takes less time
        shutil.rmtree(".autotune")
    if "--nnodes" in words:
        shutil.copy(RANKS, "best.yaml")
    if "--larger-batch" in words:
        give_a_larger_batch(folder / "best.yaml")
    opened: list[str] = []
    monkeypatch.setattr(webbrowser, "open", opened.append)  # nobody looks at it
    # 'autotune run' becomes the program; here it may not, and tests/test_api.py trains with it
    monkeypatch.setattr(os, "execve", _replace)
    monkeypatch.setattr(os, "execv", _replace)
    with ExitStack() as around:
        around.enter_context(scripted(SLOW))
        around.enter_context(records_in_memory())
        if several_machines.WORDS & {*words}:
            around.enter_context(several_machines.one_storage())
        if words[0] == "show" and "--storage" in words:
            CliRunner().invoke(app, ["search", *words[1:], "train.py"])
        if any("gc_threshold" in word for word in words):
            around.enter_context(custom_knob_installed(folder.parent))
        done = CliRunner().invoke(app, list(words))
    if isinstance(done.exception, Replaced):
        assert Path(done.exception.argv[0]).is_file()
        return
    is_gate = "--fail-if-slower" in words  # on this machine, the same program is on both sides
    assert done.exit_code in ({0, ExitStatus.UNDECIDED} if is_gate else {0}), done.output
    if words[0] in {"search", "resume"} and not {"--json", "--dry-run", "--executor"} & {*words}:
        assert VERDICT.search(done.stdout), done.output
    elif "-o" in words:
        written = Path(words[words.index("-o") + 1]).read_text(encoding="utf-8")
        assert written or "Left out" in done.stderr, "nothing is written, and nothing is said"
    else:
        assert done.stdout.strip()
    assert bool(opened) == ("--open" in words)


def _srun(words: Sequence[str], _folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run what srun starts, under the variables that it sets: srun itself needs a cluster."""
    for name, value in SLURM_STEP.items():
        monkeypatch.setenv(name, value)
    shutil.copy(RANKS, "best.yaml")
    monkeypatch.setattr(os, "execve", _replace)
    done = CliRunner().invoke(app, list(words[words.index("autotune") + 1 :]))
    assert isinstance(done.exception, Replaced), done.output
    assert "--nnodes 2 --rdzv-backend static" in shlex.join(done.exception.argv)


def _sbatch(words: Sequence[str], folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run what the job of a batch would."""
    assert words[:-2] == ["--wait", "--exclusive"]
    job = shlex.split(words[-1])
    assert job[0] == "autotune"
    _autotune(job[1:], folder, monkeypatch)


def _make(words: Sequence[str], _folder: Path, _patch: pytest.MonkeyPatch) -> None:
    """Look what make would do: CI runs the targets."""
    subprocess.run(["make", "-n", *words], cwd=ROOT, check=True, capture_output=True)


def _pip(words: Sequence[str], _folder: Path, _patch: pytest.MonkeyPatch) -> None:
    """Check the project that would be installed: installing needs a network."""
    assert words[0] == "install"
    for word in words[1:]:
        path, _, extra = word.partition("[")
        project = tomllib.loads((ROOT / path / "pyproject.toml").read_text(encoding="utf-8"))
        if extra:
            assert extra.removesuffix("]") in project["project"]["optional-dependencies"]


RUNNERS: dict[str, Callable[[Sequence[str], Path, pytest.MonkeyPatch], None]] = {
    "autotune": _autotune,
    "make": _make,
    "pip": _pip,
    "sbatch": _sbatch,
    "srun": _srun,
}
