"""A program at a revision: what comes from git, what stays of today, and what is left alone."""

import json
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import UsageError
from autotune.files import scratch
from autotune.program import line
from autotune.program.program import Program
from autotune.program.revision import at_revision

TRAIN = """
import json, os, sys
from pathlib import Path
import settings
print(json.dumps({
    "code": CODE, "module": settings.VALUE, "tracked": Path("tracked.txt").read_text(),
    "argv": sys.argv, "is_new": Path("new.txt").exists(), "above": Path("../x.txt").read_text(),
    "data": [p.read_text() for p in (Path("data/x.txt"), Path(__file__).parent / "data/x.txt")],
}))
"""
RUN = (
    "import pickle, sys\n"
    "from autotune.inside.run_program import RecordedConfig, run\n"
    "run(pickle.loads(sys.stdin.buffer.read()), RecordedConfig({}))\n"
)
Git = Callable[..., str]


@pytest.fixture
def git(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Git:
    """A repository with two commits in the present directory, as a function that runs git."""
    for role in ("AUTHOR", "COMMITTER"):
        monkeypatch.setenv(f"GIT_{role}_NAME", "a")
        monkeypatch.setenv(f"GIT_{role}_EMAIL", "a@example.com")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", os.devnull)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    repository = tmp_path / "my project"
    repository.mkdir()
    monkeypatch.chdir(repository)

    def run_git(*words: str) -> str:
        done = subprocess.run(["git", *words], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    run_git("init", "-q", "-b", "main")
    write("../x.txt", "above")
    write(".gitignore", "data/\n__pycache__/\n")
    for commit in ("old", "new"):
        write("train.py", f"CODE = {commit!r}{TRAIN}")
        write("settings.py", f"VALUE = {commit!r}")
        write("tracked.txt", commit)
        if commit == "new":
            write("new.txt", "")
        run_git("add", ".")
        run_git("commit", "-q", "-m", commit)
    write("data/x.txt", "data of today")
    return run_git


def write(path: str, text: str) -> None:
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(text)


def program_of(*words: str) -> Program:
    return line.read(words).program


def said_at(program: Program, revision: str) -> Any:
    """Run a program at a revision as a rig does, and return what it printed."""
    with at_revision(program, revision) as found:
        return said_by(found.program)


def said_by(program: Program) -> Any:
    done = subprocess.run(
        [sys.executable, "-P", "-c", RUN],
        input=pickle.dumps(program),
        cwd=program.cwd,
        env={**os.environ, **program.env, "AUTOTUNE_TESTED": "1"},
        capture_output=True,
        check=False,
    )
    assert not done.returncode, done.stderr.decode()
    return json.loads(done.stdout)


def test_tracked_files_are_those_of_the_revision_and_all_others_those_of_today(git: Git) -> None:
    write("settings.py", "VALUE = 'dirty'")
    program = program_of("train.py", "--lr", "1")
    with at_revision(program, "HEAD~1") as found:
        assert found.commit == git("rev-parse", "HEAD~1")
        folder = Path(found.program.cwd)
        said = said_by(found.program)
    assert [said[key] for key in ("code", "module", "tracked")] == ["old"] * 3
    assert (said["data"], said["above"]) == (["data of today"] * 2, "above")
    assert (said["is_new"], said["argv"]) == (False, ["train.py", "--lr", "1"])
    assert folder.name == "my project"
    assert not folder.exists()
    assert said_at(program, "main")["module"] == "new"
    assert said_by(program)["module"] == "dirty"
    assert git("status", "--porcelain") == "M settings.py"


def test_modules_and_installed_packages_come_from_the_revision(
    git: Git, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("main", "package/train"):
        write(f"{name}.py", "import json, installed; print(json.dumps(installed.VALUE))")
    for value in ("new", "dirty"):
        write("src/installed.py", f"VALUE = {value!r}")
        if value == "new":
            git("add", ".")
            git("commit", "-q", "-m", "package")
    program = program_of("-m", "package.train")
    # as pip install -e does it, by a path file
    with monkeypatch.context() as patch:
        patch.setattr(sys, "path", [*sys.path, str(Path("src").resolve())])
        assert said_at(program, "HEAD") == "new"
    monkeypatch.chdir(tmp_path)
    elsewhere = program_of("PYTHONPATH=my project/src", "my project/main.py")
    with at_revision(elsewhere, "HEAD") as found:
        assert found.program.cwd == str(tmp_path)
        assert said_by(found.program) == "new"


def test_the_checkout_stays_and_what_a_killed_process_left_goes(git: Git, tmp_path: Path) -> None:
    write("settings.py", "VALUE = 'staged'")
    git("add", "settings.py")
    write(".git/hooks/post-checkout", "#!/bin/sh\ntouch hooked\n")
    Path(".git/hooks/post-checkout").chmod(0o755)

    def state() -> dict[Path, tuple[int, int]]:
        stats = {path: path.lstat() for path in tmp_path.rglob("*") if path.name != ".git"}
        return {path: (stat.st_mtime_ns, stat.st_size) for path, stat in stats.items()}

    before, program = state(), program_of("train.py")
    with pytest.raises(KeyboardInterrupt), at_revision(program, "HEAD"):
        raise KeyboardInterrupt
    assert state() == before
    left = tmp_path / f"{scratch.PREFIX}x" / "tree" / "copy"
    git("worktree", "add", "-q", "--detach", str(left), "HEAD")
    (left.parents[1] / scratch.LOCK).touch()
    with at_revision(program, "HEAD"):
        assert not left.parents[1].exists()
        assert git("worktree", "list").count("\n") == 1
    assert state() == before
    assert git("worktree", "list").count("\n") == 0


def test_what_git_does_not_know_is_refused_with_what_to_type(
    git: Git, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(program: Program, revision: str, said: str) -> None:
        with pytest.raises(UsageError, match=said), at_revision(program, revision):
            pass

    write("later.py", "")
    git("add", ".")
    git("commit", "-q", "-m", "later")
    program = program_of("later.py")
    for revision in ("nope", "--all", ""):
        refused(program, revision, f"There is no revision '{revision}' in")
    refused(program, "HEAD~1", r"'later.py' is not in revision 'HEAD~1' \([0-9a-f]{8}\). .*git log")
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    monkeypatch.chdir(tmp_path)
    write("train.py", "")
    refused(program_of("train.py"), "HEAD", r"train\.py is not in a git repository")
    monkeypatch.setenv("PATH", str(tmp_path))
    refused(program, "HEAD", "needs git, which is not on PATH")
