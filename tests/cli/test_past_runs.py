"""Commands about searches that are over: what they print, as text and as JSON, and refuse."""

import json
import os
import re
import shutil
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from autotune.cli.app import app


@pytest.fixture
def here(searches: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with searches, as the current directory."""
    monkeypatch.chdir(searches)
    return searches


def said(*words: str, status: int = 0) -> str:
    """Run a command in this process and return its stdout; or its stderr, if it must fail."""
    done = CliRunner().invoke(app, words)
    assert done.exit_code == status, done.stderr or done.exception
    return done.stderr if status else done.stdout


def data(*words: str) -> Any:
    return json.loads(said(*words, "--json"))


def test_json_says_what_the_text_says(here: Path) -> None:
    listed = data("show", "--list")
    assert [run["run"] for run in listed] == ["fast", "slow"]
    text = said("show", "--list")
    for run in listed:
        assert run["found"] in text
        assert run["date"][:16].replace("T", " ") in text
    exported = data("export", "--to", "snippet", "fast")
    assert exported["text"] == said("export", "--to", "snippet", "fast")
    page = data("show", "--html", "fast")
    assert Path(page["path"]).read_text().startswith("<!doctype html>")


def test_a_program_reads_whole_lines(here: Path) -> None:
    for words in (("show", "--list"), ("show", "--trials", "fast"), ("show", "fast")):
        lines = said(*words).splitlines()
        assert len(lines) > 1
        assert all(line == line.rstrip() for line in lines)
        assert not [line for line in lines if re.search(r"[╭│╰\x1b]", line)]
    assert len(said("show", "--list").splitlines()) == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["compare", "slow", "fast"],
            "Name the program that is to run: autotune compare",
        ),
        (["compare", "slow"], "What should be compared? autotune compare best.yaml train.py"),
        (["show", "--html", "--md"], "Choose one of --html and --md."),
        (["show", "--open", "--md"], "Choose one of --html and --md."),
        (["show", "-o", "x.html"], "--output is where a report goes: add --html or --md."),
        (["show", "--list", "fast"], "--list is about all searches"),
        (["compare", "slow", "--json", "fast", "train.py"], "Options come first: autotune compare"),
        (["export", "--to", "patch"], "There is no format 'patch'."),
        (
            ["compare", "slwo", "fast", "train.py"],
            "There is no best.yaml and no search 'slwo'. Did",
        ),
        (["compare", "no.yaml", "fast", "train.py"], "There is no file 'no.yaml'"),
        (["compare", "slow", "git:HEAD", "train.py"], "train.py is not in a git repository"),
        (["show", "--md", "fast", "-o", "-", "--json"], "'-o -' prints the page itself"),
        (["run", "--json", "b.yaml", "train.py"], "--json is for --print-command"),
    ],
)
def test_what_cannot_be_is_refused_with_a_mend(here: Path, words: list[str], message: str) -> None:
    assert message in said(*words, status=2)


def test_an_unreadable_record_hides_no_other_and_is_told(searches: Path, workplace: Path) -> None:
    shutil.copytree(searches / ".autotune", workplace / ".autotune")
    kept = workplace / ".autotune"
    shutil.copytree(kept / "fast", kept / "older")
    _change(kept / "older" / "study.db", '"samples_per_s"', '"samples_per_minute"')
    _change(kept / "older" / "study.db", '"finding"', '"outcome"')
    (kept / "link").symlink_to(kept / "fast")
    whole = (kept / "fast" / "study.db").read_bytes()
    torn = whole[:4096] + bytes(4096) + whole[8192:]
    broken = b"not a database at all" * 100
    for name, content in (("broken", broken), ("torn", torn), ("empty", b"")):
        (kept / name).mkdir()
        (kept / name / "study.db").write_bytes(content)
    listed = {run["run"]: run for run in data("show", "--list")}
    assert listed.keys() == {"slow", "fast", "older", "broken", "torn", "empty", "link"}
    assert "damaged, or another version" in listed["torn"]["error"]
    assert "is a symbolic link" in listed["link"]["error"]
    assert "file is not a database" in listed["broken"]["error"]
    assert listed["fast"]["error"] == ""
    assert "cannot be read: 'autotune show broken' says why" in said("show", "--list")
    assert "damaged, or another version of autotune wrote it" in said("show", "broken", status=2)
    assert "it holds no search" in said("show", "empty", status=2)
    assert "another version of autotune wrote it" in said("show", "older", status=2)


def test_a_path_is_printed_with_the_bytes_that_it_has(
    searches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / os.fsdecode(b"gr\xf6\xdfe")
    shutil.copytree(searches, place)
    monkeypatch.chdir(place)
    printed = CliRunner().invoke(app, ["show", "--html", "fast"]).stdout_bytes
    assert Path(os.fsdecode(printed.removesuffix(b"\n"))).is_relative_to(place)


def _change(database: Path, text: str, other: str) -> None:
    """Replace a text in the facts that a study keeps, as another version would have them."""
    connection = sqlite3.connect(database)
    with connection:
        connection.execute(
            "update study_user_attributes set value_json = replace(value_json, ?, ?)",
            (text, other),
        )
    connection.close()


def test_a_folder_whose_record_is_no_file_is_no_search(workplace: Path) -> None:
    (workplace / ".autotune" / "odd" / "study.db").mkdir(parents=True)
    assert data("show", "--list") == []
    told = said("show", "odd", status=2)
    assert "There is no search 'odd'" in told
    assert "Did you mean" not in told


def test_a_foreign_best_yaml_is_told_in_one_line(workplace: Path) -> None:
    (workplace / "best.yaml").write_text("lr0: 0.01\nmomentum: 0.937\nepochs: 3\n")
    for words in (("export", "--to", "snippet"), ("run", "best.yaml", "train.py")):
        told = said(*words, status=2)
        assert told.startswith("autotune: best.yaml is not the result of a search")
        assert len(told.splitlines()) == 1


def test_a_result_is_shown_with_the_number_of_the_other_searches(here: Path) -> None:
    done = CliRunner().invoke(app, ["show"])
    assert "1 more search: autotune show --list" in done.stderr
    assert done.stdout == said("show", "fast")
    assert said("show", "--trials", "fast") != said("show", "fast") != said("show", "-v", "fast")
    assert json.loads(said("show", "-v", "fast", "--json")) == data("show", "fast")
