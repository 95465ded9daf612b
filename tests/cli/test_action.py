"""The composite action: its steps are run by bash, with the real command on a scripted machine."""

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.docs.pages import ROOT
from tests.made import make_loader
from tests.rigging import write_best

ACTION: dict[str, Any] = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
SCRIPTED = """\
#!{python}
import sys
from autotune.cli.app import main
from tests.docs.project import scripted
from tests.scripted import Script

with scripted(Script({{"workers": {{1: {factor}}}}}, ratio_noise=0.05)):
    main()
"""
ECHOING = """\
#!/bin/bash
printf '%s\\n' "$@" > "$WORDS"
exit {status}
"""


@pytest.fixture
def runner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What a runner of GitHub has around the steps of an action."""
    for name in ("bin", "temp", "it's work"):
        (tmp_path / name).mkdir()
    monkeypatch.setenv("PATH", str(tmp_path / "bin"), prepend=os.pathsep)
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    monkeypatch.setenv("RUNNER_TEMP", str(tmp_path / "temp"))
    monkeypatch.setenv("GITHUB_ACTION_PATH", str(ROOT))
    for name in ("GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY"):
        monkeypatch.setenv(name, str(tmp_path / name))
    monkeypatch.delenv("GITHUB_BASE_REF", raising=False)
    (tmp_path / "bin" / "python").symlink_to(sys.executable)
    return tmp_path


def install(runner: Path, text: str) -> None:
    command = runner / "bin" / "autotune"
    command.write_text(text, encoding="utf-8")
    command.chmod(0o755)


def run(folder: Path, **inputs: str) -> subprocess.CompletedProcess[str]:
    """Run all steps as GitHub does, with what their expressions stand for; return the last one."""
    assert inputs.keys() <= ACTION["inputs"].keys()
    values = {name: one.get("default") for name, one in ACTION["inputs"].items()} | inputs
    done = None
    for step in ACTION["runs"]["steps"]:
        env = {
            name: re.sub(r"\$\{\{ inputs\.([\w-]+) \}\}", lambda of: values[of[1]], value)
            for name, value in step.get("env", {}).items()
        }
        assert "${{" not in step["run"], "what is typed would be read as a script"
        shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", step["run"]]
        done = subprocess.run(
            shell,
            cwd=folder,
            env={**os.environ, **env},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            break
    assert done is not None
    return done


@pytest.mark.parametrize(
    ("factor", "status", "said"),
    [(1.5, 0, "that is ruled out"), (0.6, 1, "::error"), (0.96, 4, "::warning")],
)
def test_the_action_passes_fails_or_warns_by_what_is_measured(
    factor: float, status: int, said: str, runner: Path
) -> None:
    folder = runner / "it's work"
    (folder / "train.py").touch()
    write_best(folder / "1.yaml", {"workers": 0}, make_loader(), workers=1)
    install(runner, SCRIPTED.format(python=sys.executable, factor=factor))
    done = run(folder, program="train.py", a="written", b="1.yaml", budget="100s")
    assert done.returncode == (0 if status == 4 else status), done.stdout + done.stderr
    assert said in done.stdout
    outputs = dict(
        line.split("=", 1) for line in (runner / "GITHUB_OUTPUT").read_text().split("\n")[:2]
    )
    assert int(outputs["status"]) == status
    found = json.loads(Path(outputs["json"]).read_text(encoding="utf-8"))
    assert found["gate"]["status"] == status
    summary = (runner / "GITHUB_STEP_SUMMARY").read_text(encoding="utf-8")
    assert found["gate"]["reason"] in summary
    assert found["training"]["note"] in summary


@pytest.mark.parametrize(("cannot_tell", "ends"), [("pass", 0), ("fail", 4), ("Fail", 4)])
def test_whether_a_gate_that_cannot_tell_fails_is_an_input(
    cannot_tell: str, ends: int, runner: Path
) -> None:
    install(runner, ECHOING.format(status=4))
    done = run(runner, program="train.py", **{"cannot-tell": cannot_tell})
    assert done.returncode == ends


def test_words_with_spaces_stay_one_and_nothing_of_them_is_run(
    runner: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = runner / "words"
    monkeypatch.setenv("WORDS", str(words))
    install(runner, ECHOING.format(status=70))
    done = run(runner, program='train.py --name "a b" $(touch no) ; touch no')
    assert done.returncode == 70
    assert "ended with status 70" in done.stdout
    line = words.read_text(encoding="utf-8").splitlines()
    assert line[line.index("--") - 2 :][:6] == [
        "git:HEAD~1",
        "written",
        "--",
        "train.py",
        "--name",
        "a b",
    ]
    assert not (runner / "no").exists()
    words.unlink()
    assert run(runner, program="train.py --name 'a b").returncode == 1
    assert not words.exists(), "another program would be measured"
    monkeypatch.setenv("GITHUB_BASE_REF", "main")
    run(runner, program="train.py")
    assert "git:origin/main" in words.read_text(encoding="utf-8").splitlines()
