"""Shell completion, by the protocol that the shells' own scripts speak."""

from pathlib import Path

import pytest
import typer

from autotune.cli.app import app


@pytest.fixture
def here(workplace: Path) -> Path:
    """A folder with two searches, a best.yaml and a script."""
    for run in ("fast", "slow"):
        (workplace / ".autotune" / run).mkdir(parents=True)
        (workplace / ".autotune" / run / "study.db").touch()
    for file in ("best.yaml", "train.py"):
        (workplace / file).touch()
    return workplace


def offered(
    line: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> list[str]:
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
        ("compare ", ["written", "git:", "fast", "slow", "best.yaml"]),
        ("search --tune pinn", ["pinning"]),
        ("search --tune workers,prefe", ["workers,prefetch_factor"]),
        ("search --set atte", ["attention="]),
        ("search --space q", ["quick"]),
        ("search --budget 1m --sampler t", ["tpe"]),
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
