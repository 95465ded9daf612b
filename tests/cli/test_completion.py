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
        ("search --tune pinn", ["pinning"]),
        ("search --tune workers,prefe", ["workers,prefetch_factor"]),
        ("search --tune pinning,pinn", []),
        ("search --fix pinn", ["pinning="]),
        ("search --values atte", ["attention="]),
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


def test_completion_loads_neither_torch_nor_optuna(here: Path) -> None:
    variables = {"COMP_WORDS": "autotune show f", "COMP_CWORD": "2"}
    done = subprocess.run(
        [sys.executable, "-c", CODE],
        env={**os.environ, **variables, "_AUTOTUNE_COMPLETE": "complete_bash"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.split() == ["fast"]
