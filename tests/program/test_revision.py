"""A program at a revision: what comes from git, what stays of today, and what is left alone."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import UsageError
from autotune.program import line
from autotune.program.program import Program
from autotune.program.revision import at_revision

TRAIN = """
import json, os, sys
from pathlib import Path
import settings
import package.width
print(json.dumps({
    "code": CODE, "module": settings.VALUE, "package": package.width.WIDTH,
    "tracked": Path("tracked.txt").read_text(), "argv": sys.argv, "cwd": os.getcwd(),
    "data": [p.read_text() for p in (Path("data/x.txt"), Path(__file__).parent / "data/x.txt")],
    "above": Path("../shared.txt").read_text(), "is_new": Path("new.txt").exists(),
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
    repository = tmp_path / "my project"
    (repository / "package").mkdir(parents=True)
    monkeypatch.chdir(repository)
    monkeypatch.delenv("PYTHONPATH", raising=False)

    def run_git(*words: str) -> str:
        done = subprocess.run(["git", *words], check=True, capture_output=True, text=True)
        return done.stdout.strip()

    run_git("init", "-q", "-b", "main")
    (tmp_path / "shared.txt").write_text("shared")
    Path(".gitignore").write_text("data/\n__pycache__/\n")
    Path("package/__init__.py").touch()
    for commit in ("old", "new"):
        Path("train.py").write_text(f"CODE = {commit!r}{TRAIN}")
        Path("settings.py").write_text(f"VALUE = {commit!r}")
        Path("package/width.py").write_text(f"WIDTH = {commit!r}")
        Path("tracked.txt").write_text(commit)
        if commit == "new":
            Path("new.txt").touch()
        run_git("add", ".")
        run_git("commit", "-q", "-m", commit)
    Path("data").mkdir()
    Path("data/x.txt").write_text("data of today")
    return run_git


def program_of(*words: str) -> Program:
    return line.read(words).program


def said_by(program: Program) -> Any:
    """Run a program as a rig does, in a process of its kind, and return what it printed."""
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
    with at_revision(program_of("train.py", "--lr", "1"), "HEAD~1") as found:
        assert found.commit == git("rev-parse", "HEAD~1")
        folder = Path(found.program.cwd)
        said = said_by(found.program)
    assert [said[key] for key in ("code", "module", "package", "tracked")] == ["old"] * 4
    assert said["data"] == ["data of today"] * 2
    assert said["above"] == "shared"
    assert said["is_new"] is False
    assert said["argv"] == ["train.py", "--lr", "1"]
    assert folder.name == "my project"
    assert not folder.exists()


def test_a_module_is_run_from_the_revision_also_in_a_subfolder(git: Git) -> None:
    Path("package/train.py").write_text(
        "import json, package.width as w; print(json.dumps(w.WIDTH))"
    )
    git("add", ".")
    git("commit", "-q", "-m", "module")
    Path("package/width.py").write_text("WIDTH = 'dirty'")
    with at_revision(program_of("-m", "package.train"), "HEAD") as found:
        assert said_by(found.program) == "new"
    os.chdir("package")
    with at_revision(program_of("train.py"), "HEAD") as found:
        assert Path(found.program.cwd).name == "package"
        assert found.program.path_typed == "train.py"
        assert found.program.has_changed is False


def test_packages_on_the_import_path_come_from_the_revision(
    git: Git, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Path("src").mkdir()
    Path("src/installed.py").write_text("VALUE = 'new'")
    Path("main.py").write_text("import json, installed; print(json.dumps(installed.VALUE))")
    git("add", ".")
    git("commit", "-q", "-m", "package")
    Path("src/installed.py").write_text("VALUE = 'dirty'")
    program = program_of("main.py")
    # as pip install -e does it, by a path file
    monkeypatch.setattr(sys, "path", [*sys.path, str(Path("src").resolve())])
    with at_revision(program, "HEAD") as found:
        assert said_by(found.program) == "new"
    monkeypatch.setattr(sys, "path", sys.path[:-1])
    # or by a finder with a table, where the folder's layout allows no path file
    table = types.ModuleType("__editable___x_finder")
    vars(table)["MAPPING"] = {"installed": str(Path("src/installed").resolve())}
    finder = type("Finder", (), {"__module__": table.__name__, "find_spec": lambda *_: None})
    monkeypatch.setitem(sys.modules, table.__name__, table)
    with monkeypatch.context() as patched:
        patched.setattr(sys, "meta_path", [*sys.meta_path, finder])
        with at_revision(program, "HEAD") as found:
            assert said_by(found.program) == "new"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    program = program_of("PYTHONPATH=../my project/src", "../my project/main.py")
    with at_revision(program, "HEAD") as found:
        assert found.program.cwd == str(elsewhere)
        assert said_by(found.program) == "new"


def test_the_checkout_is_as_it_was_and_what_a_killed_process_left_is_removed(
    git: Git, tmp_path: Path
) -> None:
    Path("settings.py").write_text("VALUE = 'dirty'")
    git("add", "settings.py")
    Path("settings.py").write_text("VALUE = 'dirtier'")

    def state() -> dict[Path, tuple[int, int]]:
        stats = {path: path.lstat() for path in tmp_path.rglob("*") if path.name != ".git"}
        return {path: (stat.st_mtime_ns, stat.st_size) for path, stat in stats.items()}

    hook = Path(".git/hooks/post-checkout")
    hook.parent.mkdir(exist_ok=True)
    hook.write_text("#!/bin/sh\ntouch hooked\n")
    hook.chmod(0o755)
    before = state()
    program = program_of("train.py")
    with at_revision(program, "main") as found:
        assert said_by(found.program)["module"] == "new"
    assert said_by(program)["module"] == "dirtier"
    with pytest.raises(KeyboardInterrupt), at_revision(program_of("train.py"), "HEAD"):
        raise KeyboardInterrupt
    assert state() == before
    ended = subprocess.Popen(["true"])
    ended.wait()
    left = tmp_path / f"autotune-revision-{ended.pid}-x" / "copy"
    git("worktree", "add", "-q", "--detach", str(left), "HEAD")
    with at_revision(program_of("train.py"), "HEAD"):
        assert not left.parent.exists()
        assert git("worktree", "list").count("\n") == 1
    assert state() == before
    assert git("worktree", "list").count("\n") == 0
    assert not git("stash", "list")


def test_git_says_there_at_which_commit_the_program_is_also_within_a_hook(
    git: Git, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git("tag", "v1", "HEAD~1")
    with at_revision(program_of("train.py"), "HEAD~1") as found:
        where = ("-C", found.program.cwd)
        assert git(*where, "describe", "--tags") == "v1"
        assert not git(*where, "status", "--porcelain", "--untracked-files=no")
    git("worktree", "add", "-q", "../another", "v1")
    os.chdir("../another")
    with at_revision(program_of("train.py"), "HEAD") as found:
        assert git("-C", found.program.cwd, "describe", "--tags") == "v1"
    commit = git("rev-parse", "HEAD")
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "other"))
    monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "index"))
    with at_revision(program_of("train.py"), "HEAD") as found:
        assert found.commit == commit


def test_what_a_revision_has_goes_before_what_is_there_today(git: Git, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    Path("moved").symlink_to(outside)
    Path("runs").mkdir()
    Path("runs/kept.txt").write_text("old")
    git("add", ".")
    sub = git("rev-parse", "HEAD")
    git("update-index", "--add", "--cacheinfo", f"160000,{sub},library")
    git("commit", "-q", "-m", "tracked")
    git("rm", "-q", "--cached", "runs/kept.txt", "moved")
    git("commit", "-q", "-m", "untracked")
    Path("moved").unlink()
    for name in ("moved", "library", "package/__pycache__"):
        Path(name).mkdir()
        Path(name, "x.txt").write_text("today")
    for name in ("kept", "other"):
        Path(f"runs/{name}.txt").write_text("today")
    with at_revision(program_of("train.py"), "HEAD~1") as found:
        folder = Path(found.program.cwd)
        assert (folder / "runs/kept.txt").read_text() == "old"
        assert (folder / "runs/other.txt").read_text() == "today"
        assert (folder / "library/x.txt").read_text() == "today"
        assert not (folder / "package/__pycache__").exists()
        assert not list(outside.iterdir())


@pytest.mark.parametrize(
    ("revision", "said"),
    [
        ("nope", "There is no revision 'nope' in"),
        ("--all", "There is no revision '--all' in"),
        ("", "There is no revision '' in"),
        ("HEAD~1", r"'later.py' is not in revision 'HEAD~1' \([0-9a-f]{8}\). .*git log"),
    ],
)
def test_a_revision_that_is_not_there_or_lacks_the_program_is_refused(
    git: Git, revision: str, said: str
) -> None:
    Path("later.py").touch()
    git("add", ".")
    git("commit", "-q", "-m", "later")
    with pytest.raises(UsageError, match=said), at_revision(program_of("later.py"), revision):
        pass


def test_a_program_outside_of_any_repository_and_a_machine_without_git_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    program = program_of("train.py")
    with pytest.raises(UsageError, match=r"train\.py is not in a git repository"):
        at_revision(program, "HEAD").__enter__()
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="needs git, which is not on PATH"):
        at_revision(program, "HEAD").__enter__()
