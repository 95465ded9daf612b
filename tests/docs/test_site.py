"""The pages as a whole: the site builds, links lead somewhere, and what is generated is current."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from statistics import fmean

import pytest
from PIL import Image

from tests.docs import picture, reference, training
from tests.docs.pages import PAGES, ROOT, blocks_in

README = ROOT / "README.md"
REPLAYED = ROOT / "benchmarks" / "results" / "2026-11-26-replay-cpu.json"
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)[^)]*\)")


def test_the_readme_is_short_and_its_picture_is_small() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 200
    for image in (ROOT / "docs" / "images").iterdir():
        assert image.stat().st_size <= 150_000, image


def test_the_picture_and_the_outputs_are_of_one_run() -> None:
    printed = " ".join(picture.printed().split())
    outputs = [block for block in blocks_in("text") if "confirmed in fresh" in block.text]
    assert len(outputs) == 2
    for block in outputs:  # as they are wrapped and cut there
        shown = " ".join(block.text.removesuffix("…\n").split())
        assert printed.startswith(shown), block.place
    with Image.open(picture.PICTURE) as image:
        assert image.convert("RGB").getpixel((0, 0)) == (255, 255, 255), "the page is light"


def test_each_mark_that_is_declared_or_named_is_carried_by_a_test() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    declared = settings["tool"]["pytest"]["ini_options"]["markers"]
    named = {text.partition(":")[0] for text in declared}
    for page in (*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "Makefile"):
        text = page.read_text(encoding="utf-8")
        named |= set(re.findall(r'(?:pytest\.mark\.|-m "(?:not )?)(\w+)', text))
    tests = "".join(
        path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")
    )
    assert named <= set(re.findall(r"pytest\.mark\.(\w+)", tests))


def test_nobody_is_told_to_install_autotune_from_an_index() -> None:
    folders = [ROOT / name for name in ("autotune", "docs", "examples", "benchmarks")]
    files = [*ROOT.glob("*.*"), *(path for folder in folders for path in folder.rglob("*.*"))]
    for path in files:
        if path.suffix in {".md", ".py", ".toml", ".yaml"}:
            text = path.read_text(encoding="utf-8")
            assert not re.search(r"pip install.*autotune-torch|= .\"autotune-torch\"", text), path


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_each_link_leads_to_a_file_and_each_file_that_is_named_exists(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    for target in LINK.findall(text):
        if not target.startswith(("http://", "https://")):
            assert (page.parent / target).exists(), target

    for named in re.findall(
        r"`((?:benchmarks|examples|tests|autotune|search_spaces)/[^`*{ ]+)`", text
    ):
        assert (ROOT / named).exists(), named


def test_the_page_of_commands_says_what_the_commands_say() -> None:
    text = reference.PAGE.read_text(encoding="utf-8")
    assert text == reference.markdown(), "write it again: python -m tests.docs.reference"
    text = reference.API.read_text(encoding="utf-8")
    assert text == reference.api_page(text), "write it again: python -m tests.docs.reference"


def test_the_page_of_your_training_says_what_is_planted_in_tests() -> None:
    text = training.PAGE.read_text(encoding="utf-8")
    assert text == training.markdown(text), "write it again: python -m tests.docs.training"
    besides = [line for line in text.splitlines() if not line.startswith("|")]
    assert len(besides) <= 60


def test_the_comparison_in_the_readme_is_what_was_recorded() -> None:
    """Mean over the programs, and the least of their 5th percentiles."""
    figures = json.loads(REPLAYED.read_text(encoding="utf-8"))["figures"]
    assert figures.pop("runs") == 12
    budgets = [f"{seconds:g} s" for seconds in figures.pop("budgets_s")]
    text = README.read_text(encoding="utf-8")
    for way in next(iter(figures.values())):
        marks = [
            [program[way][budget]["recommended"] for program in figures.values()]
            for budget in budgets
        ]
        cells = [f"{fmean(m for m, _ in at):.3f} ({min(w for _, w in at):.3f})" for at in marks]
        assert f" | {' | '.join(cells)} |" in text, (way, cells)


def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    if importlib.util.find_spec("mkdocs") is None:
        assert not os.environ.get("CI"), "CI installs what builds the site"
        pytest.skip("mkdocs is not installed")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", tmp_path],
        cwd=ROOT, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    pages = {path.stem for path in tmp_path.glob("**/*.html")}
    assert {path.stem for path in PAGES} - {"README"} <= pages
    for page in tmp_path.glob("**/*.html"):
        loaded = re.findall(r'(?:src|href)="(https?://[^"]+)"', page.read_text(encoding="utf-8"))
        assert not [url for url in loaded if "mkdocs" not in url], page


SKETCH = ROOT / "docs" / "contribute" / "sketch.py"


@pytest.mark.slow
def test_the_sketch_of_the_idea_is_short_and_ends_with_a_verdict(tmp_path: Path) -> None:
    text, sketch = SKETCH.read_text(encoding="utf-8"), tmp_path / "sketch.py"
    assert len(text.splitlines()) <= 150
    # what it prints does not depend on how much it measures
    for much, little in (
        ("STEPS, SETTLING = 8, 30, 3", "STEPS, SETTLING = 2, 5, 1"),
        ("3)]", "2)]"),
    ):
        assert text.count(much) == 1
        text = text.replace(much, little)
    sketch.write_text(text, encoding="utf-8")
    done = subprocess.run([sys.executable, sketch], capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    nothing = r"threads \d+: found nothing faster that trains the same\n"
    claimed = r"threads \d+ -> \d+: (not shown to be )?faster, [\d.]+x \[[\d.]+, [\d.]+\]\n"
    assert re.fullmatch(f"{nothing}|{claimed}", done.stdout)
