"""Which environments autotune runs in: those whose torch it can tune; others are left alone."""

import sys
from importlib import metadata, util
from pathlib import Path

import pytest
from typer.testing import CliRunner

import autotune
from autotune import api
from autotune.cli.app import app
from autotune.errors import UsageError
from autotune.program.environment import OLDEST_TORCH, release_of, require_torch

PROGRAM = "import torch\n"
COMMANDS = {
    "search": ["search", "train.py"],
    "dry run": ["search", "--dry-run", "train.py"],
    "run": ["run", "best.yaml", "train.py"],
    "explain": ["run", "--explain", "best.yaml", "train.py"],
    "compare": ["compare", "best.yaml", "train.py"],
    "doctor": ["doctor"],
    "doctor of a program": ["doctor", "train.py"],
    "resume": ["resume"],
}


class Torch(metadata.Distribution):
    """What is installed under the name of torch: its version, and its folder."""

    def __init__(self, version: str, folder: Path) -> None:
        self._version, self._folder = version, folder

    def read_text(self, filename: str) -> str | None:
        is_metadata = filename == "METADATA"
        return f"Name: torch\nVersion: {self._version}\n" if is_metadata else None

    def locate_file(self, path: object) -> Path:
        return self._folder / str(path)


def with_torch(
    monkeypatch: pytest.MonkeyPatch, version: str, folder: Path = Path("/opt/site-packages")
) -> None:
    monkeypatch.setattr(metadata, "distribution", lambda _: Torch(version, folder))


def without_torch(monkeypatch: pytest.MonkeyPatch, *, can_be_imported: bool = False) -> None:
    def missing(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "distribution", missing)
    monkeypatch.setattr(util, "find_spec", lambda _: object() if can_be_imported else None)


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_a_command_refuses_a_torch_that_is_too_old_and_leaves_everything_as_it_was(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text(PROGRAM)
    Path("best.yaml").write_text("")
    with_torch(monkeypatch, "2.3.1")
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 2
    assert " ".join(done.stderr.split()) == (
        "autotune: autotune needs PyTorch 2.6 or later; this environment has 2.3.1. Nothing was "
        "changed."
    )
    assert {path.name for path in tmp_path.iterdir()} == {"train.py", "best.yaml"}


def test_so_do_the_functions_of_python(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with_torch(monkeypatch, "2.5.1+cu121")
    for call in (lambda: api.search("train.py"), api.resume, lambda: autotune.apply("best.yaml")):
        with pytest.raises(UsageError, match=r"this environment has 2\.5\.1\+cu121"):
            call()


def test_a_report_for_a_bug_is_made_in_any_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    without_torch(monkeypatch)
    assert CliRunner().invoke(app, ["doctor", "--report"]).exit_code == 0


@pytest.mark.parametrize("version", [OLDEST_TORCH, "2.6.0a0+df5bbc09d1.nv24.12", "2.10.0", "3.0"])
def test_the_oldest_and_what_is_later_are_taken(
    version: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_torch(monkeypatch, version)
    require_torch()
    assert release_of(version) >= release_of(OLDEST_TORCH)


def test_where_torch_is_missing_it_says_where_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    without_torch(monkeypatch)
    with pytest.raises(UsageError, match=r"Install autotune where train\.py's torch is"):
        require_torch()
    without_torch(monkeypatch, can_be_imported=True)  # a build on PYTHONPATH
    require_torch()


@pytest.mark.parametrize("made_by", ["pipx_metadata.json", "uv-receipt.toml", "uvx"])
def test_an_environment_that_was_made_for_autotune_alone_is_refused(
    made_by: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prefix = tmp_path / ("archive-v0" if made_by == "uvx" else "tools") / "autotune-torch"
    prefix.mkdir(parents=True)
    if made_by != "uvx":
        (prefix / made_by).touch()
    monkeypatch.setattr(sys, "prefix", str(prefix))
    with_torch(monkeypatch, "2.10.0", prefix / "lib" / "site-packages")
    with pytest.raises(UsageError, match="made for it alone"):
        require_torch()
    with_torch(monkeypatch, "2.10.0")  # that of the environment which this one extends
    require_torch()


def test_the_doctor_names_another_distribution_with_the_same_import(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    owners = {"autotune": ["autotune-torch", "autotune"]}
    monkeypatch.setattr(metadata, "packages_distributions", lambda: owners)
    said = CliRunner().invoke(app, ["doctor"]).stderr
    assert "of the same name, autotune: autotune. One replaces" in " ".join(said.split())
    assert "python -m pip uninstall autotune'" in " ".join(said.split())
