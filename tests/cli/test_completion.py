"""Shell completion, by the protocol that the shells' own scripts speak."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import typer

from autotune.cli import completion
from autotune.cli.app import app
from autotune.exports import TRACKERS, formats
from autotune.knobs import registry
from autotune.tuning.choosing.sampler import SAMPLERS
from autotune.tuning.search_request import SearchRequest, described

# What each shell's script sets for "autotune show f", and how it marks a completion
SHELLS = {
    "bash": ({"COMP_WORDS": "autotune show f", "COMP_CWORD": "2"}, "fast"),
    "zsh": ({"_TYPER_COMPLETE_ARGS": "autotune show f"}, '("fast")'),
    "fish": (
        {"_TYPER_COMPLETE_ARGS": "autotune show f", "_TYPER_COMPLETE_FISH_ACTION": "get-args"},
        "fast",
    ),
}
# No run of these is read: completion needs their names alone
CODE = (
    "import sys\n"
    "from autotune.cli.app import main\n"
    "sys.argv = ['autotune']\n"
    "try:\n    main()\nexcept SystemExit:\n    pass\n"
    "heavy = {'torch', 'optuna', 'numpy', 'sqlalchemy', 'jinja2'} & set(sys.modules)\n"
    "assert not heavy, heavy\n"
)


@pytest.fixture
def here(workplace: Path) -> Path:
    """A folder with two runs, a best.yaml and a script."""
    for run in ("fast", "slow"):
        (workplace / ".autotune" / run).mkdir(parents=True)
        (workplace / ".autotune" / run / "study.db").touch()
    for file in ("best.yaml", "train.py"):
        (workplace / file).touch()
    return workplace


def offered(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> list[str]:
    """Return what bash would be offered for the last word of a line."""
    for name, value in {
        "_AUTOTUNE_COMPLETE": "complete_bash",
        "COMP_WORDS": f"autotune {line}",
        "COMP_CWORD": str(len(line.split(" "))),
    }.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(SystemExit):
        typer.main.get_command(app)(args=[], prog_name="autotune")
    return capsys.readouterr().out.split()


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("sho", ["show"]),
        ("show ", ["fast", "slow"]),
        ("report s", ["slow"]),
        ("resume f", ["fast"]),
        ("compare ", ["written", "git:", "fast", "slow", "best.yaml"]),
        ("compare --quiet written b", ["best.yaml"]),
        ("search --tune num_w", ["workers"]),
        ("search --tune workers,prefe", ["workers,prefetch_factor"]),
        ("search --tune workers,num_w", []),
        ("search --fix num_w", ["workers="]),
        ("search --values sdpa", ["attention="]),
        ("search --space q", ["quick"]),
        ("search --space b", ["best.yaml"]),
        ("search --objective en", ["energy"]),
        ("search --budget 1m --sampler t", ["tpe"]),
        ("search --lr-rule s", ["sqrt"]),
        ("doctor --fence l", ["landlock"]),
        ("export --to wa", ["wandb"]),
    ],
)
def test_a_word_is_completed(
    here: Path,
    line: str,
    words: list[str],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found = offered(line, monkeypatch, capsys)
    assert sorted(found) == sorted(words)  # two runs of one second have no order


def test_all_that_an_option_takes_is_offered() -> None:
    assert described(SearchRequest)["sampler"].offers == SAMPLERS
    assert completion.exports("") == [*formats(), *TRACKERS]
    assert completion.knob_list("") == [*registry()]


@pytest.mark.parametrize("shell", SHELLS)
def test_each_shell_is_answered_in_its_words_without_loading_torch_or_optuna(
    here: Path, shell: str
) -> None:
    variables, word = SHELLS[shell]
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        env={**os.environ, **variables, "_AUTOTUNE_COMPLETE": f"complete_{shell}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert word in done.stdout
    assert "slow" not in done.stdout


def test_the_script_for_bash_completes_in_bash(here: Path) -> None:
    command = here / "autotune"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c "{MAIN}" "$@"\n')
    command.chmod(0o755)
    script = (
        'eval "$(autotune --show-completion)"; COMP_WORDS=(autotune show f); COMP_CWORD=2; '
        '_autotune_completion autotune; printf "%s\\n" "${COMPREPLY[@]}"'
    )
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        env={**os.environ, "PATH": f"{here}{os.pathsep}{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "fast\n", done.stderr


MAIN = "import sys; sys.argv[0] = 'autotune'; from autotune.cli.app import main; main()"
