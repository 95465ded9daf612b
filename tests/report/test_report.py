"""The report: one page that says what the console says, whatever the program is called."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from autotune.report.svg import Scale

from autotune.measurement.interval import Interval
from autotune.measurement.outcome import Ending, Outcome
from autotune.program.config import Config, KnobValue
from autotune.program.run_length import RunLength
from autotune.report import ShownResult, Training, html, markdown
from autotune.results.record import TrialRecord
from autotune.results.result import Finding, SearchResult
from autotune.results.training_steps import TrainingSteps
from autotune.results.verdict import verdict
from tests.made import make_record
from tests.scripted import Question, Script, begin

KNOBS: dict[str, tuple[KnobValue, ...]] = {
    "workers": (0, 1, 2),
    "batch_size": (64, 128),
    "precision": ("fp32", "bf16"),
}
BEST = Path("best.yaml")
HOSTILE = "</script><script>alert('x')</script> \"quoted\" & <b>bold</b> | `code` [link](http://x)"
CRASH = Ending(Outcome.CRASHED, f"ValueError: {HOSTILE}", f"Traceback …\n{HOSTILE}", steps=1)


def _fails_in_bf16(question: Question) -> Ending | None:
    return CRASH if question.config is not None and question.config["precision"] == "bf16" else None


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> SearchResult:
    folder = tmp_path_factory.mktemp("search")
    script = Script(
        {"workers": {1: 1.5}},
        ends=_fails_in_bf16,
        peak_bytes=lambda config, _: (1 + int(config["workers"])) << 30,
    )
    searched = begin(folder, script, KNOBS)
    result = searched.go_on(180.0)
    kept = searched.study.result
    assert kept is not None
    assert verdict(kept, BEST) == verdict(result, BEST), "the record says what the search said"
    assert html(kept, BEST) == html(result, BEST)
    return kept


class _Elements(HTMLParser):
    """The tags of a page with their attributes, and the text outside of scripts."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(page)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.words.append(data)


def text_of(page: str) -> str:
    return " ".join(" ".join(_Elements(page).words).split())


def test_the_page_says_what_the_console_says(found: SearchResult) -> None:
    assert found.finding is Finding.FASTER
    said = verdict(found, BEST)
    for page in (text_of(html(found, BEST)), markdown(found, BEST).replace("\\", "")):
        for text in (
            said.headline,
            said.basis,
            *said.more,
            *said.why,
            *(command.text for command in said.next),
            *(row.after for row in said.figures),
            *(change.values for change in said.changes),
            *(change.gain for change in said.changes),
        ):
            assert " ".join(text.split()) in page
    page = text_of(html(found, BEST))
    for record in found.records:
        for knob, value in record.config.changes_from(found.baseline).items():
            assert f"{knob}={value}" in page


def test_the_page_loads_nothing_and_runs_nothing(found: SearchResult) -> None:
    tags = _Elements(html(found, BEST)).tags
    assert [attrs["type"] for tag, attrs in tags if tag == "script"] == ["application/json"]
    for tag, attrs in tags:
        assert tag not in {"link", "img", "iframe", "object", "base"}
        assert not {"src", "href", "srcset"} & attrs.keys()
        assert not [name for name in attrs if name.startswith("on")]


def test_each_drawing_is_well_formed_and_stays_within_its_frame(found: SearchResult) -> None:
    drawings = re.findall(r"<svg.*?</svg>", html(found, BEST), re.DOTALL)
    assert len(drawings) == 5
    for drawing in drawings:
        root = ElementTree.fromstring(drawing)
        _, _, width, height = map(float, root.attrib["viewBox"].split())
        for shape in root.iter():
            for across in ("x", "x1", "x2", "cx"):
                assert 0 <= float(shape.attrib.get(across, 0)) <= width, drawing
            for down in ("y", "y1", "y2", "cy"):
                assert 0 <= float(shape.attrib.get(down, 0)) <= height, drawing


def test_the_proof_says_whether_configs_took_turns_or_had_processes_of_their_own(
    found: SearchResult,
) -> None:
    shared = text_of(html(found, BEST))
    assert "Each dot is a process in which both configs took turns" in shared
    apart = replace(found, claim=tuple(replace(one, is_pair=True) for one in found.claim))
    assert "Each dot is two fresh processes, one of each config" in text_of(html(apart, BEST))


def test_whatever_a_program_is_called_or_says_is_text(found: SearchResult) -> None:
    program = replace(found.head.program, args=(HOSTILE,))
    named = replace(found, head=replace(found.head, program=program), reason=HOSTILE)
    assert any(record.ending == CRASH for record in named.records)
    page = html(named, BEST)
    elements = _Elements(page)
    assert [tag for tag, _ in elements.tags if tag in {"script", "b"}] == ["script"]
    assert "alert('x')" in " ".join(elements.words)
    raw = re.search(r'id="autotune">(.*?)</script>', page, re.DOTALL)
    assert raw is not None
    data = json.loads(raw[1])
    assert HOSTILE in data["reason"]
    cells = [line for line in markdown(named, BEST).splitlines() if line.startswith("|")]
    assert {len(re.findall(r"(?<!\\)\|", line)) for line in cells} <= {4, 9}


def test_what_it_is_worth_follows_from_the_hours_or_the_steps(found: SearchResult) -> None:
    gain = found.speedup.estimate
    page = text_of(html(found, BEST, Training(hours=30.0, price_per_hour=2.0)))
    assert f"At 2 per hour, that is worth {2.0 * 30 * (1 - 1 / gain):,.2f}." in page
    assert "by the speedup of the training loop" in page
    assert "Of each hour that the program trains as written" in text_of(html(found, BEST))
    rates = (Interval(100.0, 90.0, 110.0), Interval(200.0, 190.0, 210.0))
    steps = TrainingSteps(RunLength(2.0, "train.py:3"), 1000.0, 5.0, rates, compile_s=2.0)
    known = text_of(html(replace(found, training_steps=steps), BEST))
    assert "The training steps of the whole training take 12 s instead of 15 s" in known
    kept = replace(found, best=found.baseline, finding=Finding.NO_GAIN)
    assert "that is worth" not in text_of(html(kept, BEST, Training(30.0, 2.0)))


def test_a_report_of_many_trials_is_a_small_file_and_needs_no_torch(
    found: SearchResult, tmp_path: Path
) -> None:
    extra = tuple(_trial(found, {"workers": n % 3, "batch_size": 64 + n}) for n in range(200))
    many = replace(found, records=(*found.records, *extra))
    assert len(html(many, BEST).encode()) < 200_000
    code = "import sys; import autotune.report; assert not {'torch', 'optuna'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def _trial(result: SearchResult, changes: dict[str, KnobValue]) -> TrialRecord:
    return replace(
        make_record(Config({**result.baseline, **changes}), 1.1),
        why="it may be the fastest, by what was seen so far",
    )


def test_a_search_in_which_only_the_baseline_was_measured_has_a_page(tmp_path: Path) -> None:
    result = begin(tmp_path, Script(), {"workers": (0,)}).go_on(60.0)
    assert not result.changes
    assert "your program's own config is kept" in text_of(html(result, BEST))


@pytest.mark.parametrize(
    ("low", "high", "ticks"),
    [(0.0, 10.0, [0, 2.5, 5, 7.5, 10]), (0.95, 1.6, [1.0, 1.2, 1.4, 1.6]), (3.0, 4.0, None)],
)
def test_ticks_are_round_and_lie_on_the_scale(
    low: float, high: float, ticks: list[float] | None
) -> None:
    scale = Scale(low, high, 10.0, 110.0)
    found = scale.ticks()
    assert 3 <= len(found) <= 7
    if ticks is not None:
        assert found == pytest.approx(ticks)
    assert all(10.0 <= scale(tick) <= 110.0 for tick in found)
    assert scale(low) == 10.0
    assert scale(high) == 110.0


def test_a_notebook_shows_the_verdict_with_the_tables_of_the_page(found: SearchResult) -> None:
    shown = ShownResult.of(found)
    assert repr(shown) == repr(found)
    assert verdict(shown, BEST) == verdict(found, BEST)
    card, page = shown._repr_html_(), html(found, BEST)
    tables = re.findall(r"<table>.*?</table>", card, re.DOTALL)
    assert len(tables) == 2
    assert all(table in page for table in tables)
    said = verdict(found, BEST)
    for text in (said.headline, said.basis, *said.more):
        assert text in text_of(card)
    kept = ShownResult.of(replace(found, best=found.baseline, finding=Finding.NO_GAIN))
    assert len(re.findall("<table>", kept._repr_html_())) == 1, "no knob changes"


def test_the_card_of_a_hostile_program_holds_text_and_touches_nothing_around_it(
    found: SearchResult,
) -> None:
    program = replace(found.head.program, args=(HOSTILE,))
    named = replace(found, head=replace(found.head, program=program), reason=HOSTILE)
    open_ = replace(named, finding=Finding.UNCONFIRMED, best=found.baseline)
    for result in (named, open_):
        card = ShownResult.of(result)._repr_html_()
        assert not {tag for tag, _ in _Elements(card).tags} & {"script", "b", "link", "img"}
        assert "<script>alert(" in text_of(card)
        (styles,) = re.findall(r"<style>(.*?)</style>", card, re.DOTALL)
        rules = re.sub(r"/\*.*?\*/", "", styles, flags=re.DOTALL)
        selectors = [one for rule in re.findall(r"([^{}]+)\{", rules) for one in rule.split(",")]
        assert all(selector.strip().startswith(".autotune") for selector in selectors)
