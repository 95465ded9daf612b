"""The pages as a whole: the site builds, links lead somewhere, and what is generated is current."""

import importlib.util
import json
import os
import re
import subprocess
import sys
import tomllib
from itertools import product
from pathlib import Path
from statistics import fmean

import pytest
from PIL import Image

from autotune.knobs import registry
from autotune.results import bestfile
from tests.docs import picture, recording, reference, terminal, training
from tests.docs.pages import FENCE, PAGES, ROOT

README = ROOT / "README.md"
NUMBERS = ROOT / "docs" / "trust" / "the-numbers.md"
MEMORY_SAVERS = {"accumulation_steps", "activation_checkpointing", "cuda_allocator"}
REPLAYED = ROOT / "benchmarks" / "results" / "2026-11-26-replay-cpu.json"
MACHINES = ROOT / "docs" / "use" / "several-machines.md"
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)[^)]*\)")


def test_the_readme_is_short_and_pictures_are_small() -> None:
    assert len(README.read_text(encoding="utf-8").splitlines()) <= 120
    for image in (ROOT / "docs" / "images").iterdir():
        assert image.stat().st_size <= 200_000, image


def test_picture_recording_and_printed_texts_are_of_one_search() -> None:
    named = terminal.title_of(recording.RECORDING)
    assert picture.search_id() == named
    shown = recording.verdict(terminal.last_screen(recording.RECORDING))
    assert len(shown.splitlines()) <= 15
    for page in recording.VERDICTS:
        assert recording.text_in(page) == (named, shown), page
    for page in (recording.EXAMINED, recording.WRITTEN):
        assert recording.text_in(page)[0] == named, page
    with Image.open(picture.PICTURE) as image:
        assert image.convert("RGB").getpixel((0, 0)) == (255, 255, 255), "the page is light"


def test_a_recording_shows_what_a_terminal_shows_and_needs_no_script(tmp_path: Path) -> None:
    said = "import time; print('\\033[1;31ma < b\\033[0m', end='', flush=True); time.sleep(.3)"
    printed, status = terminal.record([sys.executable, "-c", f"{said}; print('\\r  c &')"])
    shown = terminal.screens("autotune", printed)
    assert status == 0
    assert [terminal.text_of(screen)[:2] for _, screen in shown[-2:]] == [
        ["$ autotune", "a < b"],
        ["$ autotune", "  c &"],
    ]
    picture_of_it = tmp_path / "recording.svg"
    picture_of_it.write_text(terminal.svg("an id", shown), encoding="utf-8")
    assert terminal.last_screen(picture_of_it) == terminal.text_of(shown[-1][1])
    assert terminal.title_of(picture_of_it) == "an id"
    text = picture_of_it.read_text(encoding="utf-8")
    assert "prefers-reduced-motion" in text
    assert "<script" not in text


def test_each_mark_that_is_declared_or_named_is_carried_by_a_test() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    declared = settings["tool"]["pytest"]["ini_options"]["markers"]
    named = {text.partition(":")[0] for text in declared}
    for page in (*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "Makefile"):
        text = page.read_text(encoding="utf-8")
        named |= set(re.findall(r'(?:pytest\.mark\.|-m "(?:not )?)(\w+)', text))
    tests = "".join(
        path.read_text(encoding="utf-8")
        for pattern in ("test_*.py", "conftest.py")  # the latter marks what lies beside it
        for path in (ROOT / "tests").rglob(pattern)
    )
    assert named <= set(re.findall(r"pytest\.mark\.(\w+)", tests))


def test_nobody_is_told_to_install_autotune_from_an_index() -> None:
    folders = [ROOT / name for name in ("autotune", "docs", "examples", "benchmarks")]
    files = [*ROOT.glob("*.*"), *(path for folder in folders for path in folder.rglob("*.*"))]
    for path in files:
        if path.suffix in {".md", ".py", ".toml", ".yaml"}:
            text = path.read_text(encoding="utf-8")
            # With an extra, pip takes the autotune that is installed and adds what the extra names
            from_index = r"pip install.*autotune-torch(?!\[)|= .\"autotune-torch\""
            assert not re.search(from_index, text), path


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


@pytest.mark.parametrize("page", reference.PAGES, ids=lambda page: page.name)
def test_a_page_of_the_reference_says_what_the_program_says(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    assert text == reference.PAGES[page](text), "write it again: python -m tests.docs.reference"


def test_the_page_of_best_yaml_has_all_of_its_keys() -> None:
    text = recording.WRITTEN.read_text(encoding="utf-8")
    for section in (bestfile.BestFile, bestfile.MadeOn, bestfile.SearchSection):
        assert set(section.model_fields) <= set(re.findall(r"`(\w+)`", text)), section


def test_the_readme_says_of_each_setting_what_it_may_change() -> None:
    text = README.read_text(encoding="utf-8")
    told = dict(re.findall(r"^\| `(\w+)` \| [^|]+ \| (\w+) \|$", text, re.MULTILINE))
    shown = {name: str(one.changes) for name, one in registry().items() if not one.is_hidden}
    assert told == {name: level for name, level in shown.items() if name not in MEMORY_SAVERS}
    assert set(shown) >= MEMORY_SAVERS


def test_a_page_answers_in_its_first_line_and_then_has_a_command() -> None:
    for page in PAGES:
        if page.parent != ROOT:
            text = page.read_text(encoding="utf-8")
            assert re.match(r"# .+\n\n[^|#\n*-]", text), page
            assert re.match("You (get|learn|find)", text.split("\n\n")[1]) is None, page
            first = FENCE.search(text)
            assert first is not None, page
            assert first.group(1) in {"console", "python"}, page


def test_the_page_of_the_comparison_says_what_is_planted_in_tests() -> None:
    text = training.PAGE.read_text(encoding="utf-8")
    assert text == training.markdown(text), "write it again: python -m tests.docs.training"


def test_the_comparison_of_ways_to_choose_is_what_was_recorded() -> None:
    """Mean over the programs, and the least of their 5th percentiles."""
    figures = json.loads(REPLAYED.read_text(encoding="utf-8"))["figures"]
    assert figures.pop("runs") == 12
    budgets = [f"{seconds:g} s" for seconds in figures.pop("budgets_s")]
    text = NUMBERS.read_text(encoding="utf-8")
    for way in next(iter(figures.values())):
        marks = [
            [program[way][budget]["recommended"] for program in figures.values()]
            for budget in budgets
        ]
        cells = [f"{fmean(m for m, _ in at):.3f} ({min(w for _, w in at):.3f})" for at in marks]
        assert f" | {' | '.join(cells)} |" in text, (way, cells)


def test_the_figures_of_several_machines_are_what_was_recorded() -> None:
    model, replay, searches = (
        json.loads(path.read_text(encoding="utf-8"))["figures"]
        for kind in ("model", "replay", "searches")
        for path in [max((ROOT / "benchmarks" / "results").glob(f"*-machines-{kind}-cpu.json"))]
    )
    text = " ".join(MACHINES.read_text(encoding="utf-8").split())
    for machines, gain in product((2, 4), ("1.05x", "1.1x")):
        cells = [f"| {machines} | {gain}"]
        for omega in (0.0, 0.01, 0.02, 0.03):
            its = model[f"{machines} x 2, omega {omega}, {gain}"]
            cells.append(f"{100 * its['claims']:.0f} %, ± {its['half_width_pct']:.1f} %")
        assert f"{' | '.join(cells)} |" in text, cells
    drawn = [one for name, one in model.items() if " x " in name and "holds" in one]
    held = [f"{100 * bound(one['holds'] for one in drawn):.0f}" for bound in (min, max)]
    assert f"{held[0]} to {held[1]} % of cases" in text
    for name, its in replay.items():
        if name.endswith(" members"):
            asked = its["requests_per_s"] + 1e-6  # of 0.05, upwards
            row = (
                f"| {name.split()[0]} | {its['searches']} | {its['reached_s']:.0f} s "
                f"| {100 * its['reached']:.0f} % | {its['announced']:.3f} | {asked:.1f} |"
            )
            assert row in text, row
    whole, worst = searches["all"], searches["4 machines, omega 0.03"]
    assert f"In {whole['searches']:,} whole searches" in text
    assert f"it was {100 * whole['holds_another']:.1f} %" in text
    assert f"and {100 * worst['holds_another']:.1f} % for four machines that differ by 3 %" in text
    assert whole["false_for_another"] == 0, "none of them recommended what is not faster"


def test_each_benchmark_is_listed_with_its_date_and_rows_of_others_are_theirs() -> None:
    text = NUMBERS.read_text(encoding="utf-8")
    for result in (ROOT / "benchmarks" / "results").glob("*.json"):
        listed = [line for line in text.splitlines() if f"results/{result.name}`" in line]
        assert any(f"| {result.name[:10]} |" in line for line in listed), result.name
    made = (ROOT / "benchmarks" / "README.md").read_text(encoding="utf-8")
    scripts = text[text.index("| script | claimed |") : text.index("All of the 15 gains")]
    assert scripts.strip() in made
    first = README.read_text(encoding="utf-8")
    for row in scripts.splitlines()[2:8]:
        assert row.rsplit(" | ", 1)[0].replace(" | ", " | CPU, 90 s | ", 1) in first, row


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
    for target in LINK.findall((tmp_path / "llms.txt").read_text(encoding="utf-8")):
        assert (tmp_path / target).is_file(), target
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
