"""The report: one page that says what the console says, whatever the program is called."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

from autotune.report import figures, html, markdown
from autotune.results.finding import Finding
from autotune.results.result import SearchResult
from autotune.results.verdict import verdict
from tests.exports.stored import BEST, CRASH, HOSTILE, stored
from tests.scripted import Script, begin

__all__ = ["stored"]


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


def test_the_page_says_what_the_console_says(stored: SearchResult) -> None:
    assert stored.finding is Finding.FASTER
    said = verdict(stored, BEST)
    for page in (text_of(html(stored, BEST)), markdown(stored, BEST).replace("\\", "")):
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
    page = text_of(html(stored, BEST))
    for record in stored.records:
        for knob, value in record.config.changes_from(stored.baseline).items():
            assert f"{knob}={value}" in page


def test_the_page_loads_nothing_and_runs_nothing(stored: SearchResult) -> None:
    tags = _Elements(html(stored, BEST)).tags
    assert [attrs["type"] for tag, attrs in tags if tag == "script"] == ["application/json"]
    for tag, attrs in tags:
        assert tag not in {"link", "img", "iframe", "object", "base"}
        assert not {"src", "href", "srcset"} & attrs.keys()
        assert not [name for name in attrs if name.startswith("on")]


def test_each_bar_and_interval_stays_within_its_frame(stored: SearchResult) -> None:
    bars = figures.step_bars(stored)
    assert [bar.name for bar in bars][:2] == ["as written", "best config"]
    assert bars[0].total_ms > bars[1].total_ms > 0
    charts = [*figures.ranges(stored)]
    assert [chart.title for chart in charts] == ["The proof", "What each change gives"]
    for chart in charts:
        assert chart.rows[-1][1] == stored.speedup
        places = [
            chart.place(x) for _, one in chart.rows for x in (one.low, one.estimate, one.high)
        ]
        assert all(0 <= place <= 100 for place in (*places, chart.place(1.0)))


def test_whatever_a_program_is_called_or_says_is_text(stored: SearchResult) -> None:
    program = replace(stored.head.program, args=(HOSTILE,))
    named = replace(stored, head=replace(stored.head, program=program), reason=HOSTILE)
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


def test_a_search_in_which_only_the_baseline_was_measured_has_a_page(tmp_path: Path) -> None:
    result = begin(tmp_path, Script(), {"workers": (0,)}).go_on(60.0)
    assert not result.changes
    assert "your program's own config is kept" in text_of(html(result, BEST))
    code = "import sys; import autotune.report; assert not {'torch', 'optuna'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
