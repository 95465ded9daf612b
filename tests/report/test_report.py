"""The report: one page that says what the console says, whatever the program is called."""

import re
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path

import pytest

from autotune.exports.by_hand import by_hand
from autotune.measurement.interval import Interval
from autotune.program.config import Config
from autotune.program.may_change import MayChange
from autotune.program.program import parse_program
from autotune.report import charts, html, markdown
from autotune.report.repeat import command, repeat
from autotune.results.finding import Finding
from autotune.results.result import LargerBatch, SearchResult
from autotune.results.shared_answer import GroupAnswer, MachineClaim, SharedAnswer
from autotune.results.verdict import verdict
from tests.exports.stored import BEST, CRASH, HOSTILE, stored
from tests.exports.test_by_hand import TRAINS, searched
from tests.scripted import Script, begin
from tests.tuning.watched import TWO

__all__ = ["stored"]
MOST_BYTES = 200_000


class _Elements(HTMLParser):
    """The tags of a page with their attributes, and its text."""

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
    return " ".join("".join(_Elements(page).words).split())


def has(page: str, text: str) -> bool:
    return " ".join(text.replace("   ", " · ").split()) in page


def test_each_other_machine_has_a_row_of_the_proof_with_its_turns(stored: SearchResult) -> None:
    gain = Interval(1.4, 1.2, 1.6)
    machines = (
        MachineClaim("here", 2, gain, is_here=True),
        MachineClaim("<b>other", 3, gain, turns=(1.3, 1.4, 1.5)),
        MachineClaim("odd", 1, gain, turns=(1.2,), differs=True),
    )
    groups = (
        GroupAnswer(
            "0a", "NVIDIA A100, AMD EPYC", Finding.FASTER, Config(stored.changes), gain, ("gpu01",)
        ),
    )
    shared = replace(stored, shared=SharedAnswer(machines, groups=groups))
    rows = charts.proofs(shared)[0].rows[-2:]
    assert [(row.name, len(row.turns)) for row in rows] == [("<b>other", 3), ("odd", 1)]
    assert rows[0].began == "3 processes of another machine"
    assert rows[1].began == "1 process of another machine, not in the claim"
    for page, name in ((html(shared, BEST), "&lt;b&gt;other"), (markdown(shared, BEST), "\\<b\\>")):
        assert "1.4x on NVIDIA A100, AMD EPYC" in page
        assert "another kind, NVIDIA A100, AMD EPYC" in page
        assert name in page, "it is escaped"


def test_the_page_says_what_the_console_says(stored: SearchResult) -> None:
    assert stored.finding is Finding.FASTER
    said = verdict(stored, BEST)
    for page in (text_of(html(stored, BEST)), markdown(stored, BEST).replace("\\", "")):
        assert has(page, said.headline)
        assert all(has(page, row.text) for row in (*said.facts, *said.rest))
        assert all(has(page, f"{one.setting}") for one in said.changes)
        assert all(has(page, one.values) for one in said.changes)
    page = text_of(html(stored, BEST))
    for record in stored.records:
        for setting, value in record.config.changes_from(stored.baseline).items():
            assert f"{setting}={value}" in page


def test_the_proof_comes_first_then_the_changes_and_the_rest_in_this_order(
    stored: SearchResult,
) -> None:
    order = ["The proof", "What changes", "By hand", "Do it again", "6 trials"]
    order.append("Where a step's time goes")
    page, text = html(stored, BEST), markdown(stored, BEST)
    assert re.findall(r"<h[12]>(.*?)</h[12]>", page)[1 : len(order) + 1] == order
    titles = re.findall(r"^(?:## |<details><summary>)(.*?)(?:</summary>)?$", text, re.MULTILINE)
    assert titles[: len(order)] == order
    assert text_of(page).index(verdict(stored, BEST).headline) < text_of(page).index(order[0])


def test_each_turn_of_each_process_is_a_dot(stored: SearchResult) -> None:
    (shown,) = charts.proofs(stored)
    assert shown.claim == stored.speedup
    turns = [turn for one in stored.claim for turn in one.turns]
    dots = [
        a for tag, a in _Elements(html(stored, BEST)).tags if tag == "circle" and a["r"] == "3.5"
    ]
    assert len(dots) == len(turns) + 2, "and two in the key"
    assert {one["class"] for one in dots} == {"first", "second"}
    lines = shown.text().splitlines()
    assert len(lines) == len(stored.claim)
    assert all("|" in line and set(".o") & set(line) for line in lines)
    assert not charts.proofs(replace(stored, claim=()))
    larger = LargerBatch(stored.best.replace(batch_size=128), stored.speedup, 9.0, stored.claim)
    both = replace(stored, larger_batch=larger)
    titles = ["The proof", "The larger batch: batch_size=128"]
    assert [one.title for one in charts.proofs(both)] == titles
    for page in (text_of(html(both, BEST)), markdown(both, BEST).replace("\\", "")):
        assert all(title in page for title in titles)


def test_a_scale_holds_what_it_shows_and_its_labels_stand_apart() -> None:
    for low, high in ((1.0, 1.0), (0.99, 1.01), (0.5, 1.1), (1.05, 1.6), (0.2, 30.0), (3.0, 4.0)):
        scale = charts.Scale.over([low, high])
        assert 0 < scale.place(low) <= scale.place(high) < 100
        assert 1.0 in scale.ticks
        at = [scale.place(one) for one in scale.ticks]
        assert all(b - a > charts.APART for a, b in pairwise(at)), (low, high)
        assert len(scale.ticks) >= 2 or high == low
    assert scale.place(0.001) == 0.0, "what is beyond stands at the edge"


@pytest.mark.parametrize("finding", Finding)
def test_each_finding_has_a_page(stored: SearchResult, finding: Finding) -> None:
    kept = replace(stored, finding=finding, reason="there was no time")
    if finding is not Finding.FASTER:
        kept = replace(kept, best=stored.baseline)
    least = replace(
        kept, claim=(), records=stored.records[:1], candidate=None, candidate_speedup=None
    )
    for result in (kept, kept if finding in {Finding.FASTER, Finding.TOO_NOISY} else least):
        for page in (text_of(html(result, BEST)), markdown(result, BEST).replace("\\", "")):
            assert has(page, verdict(result, BEST).headline)
            assert "Do it again" in page
            is_told = result.candidate is not None and finding is not Finding.FASTER
            assert ("The best attempt, which is not recommended" in page) is is_told


def test_only_the_program_as_written_was_measured(tmp_path: Path) -> None:
    result = begin(tmp_path, Script(), {"workers": (0,)}).go_on(60.0)
    assert not result.changes
    page = text_of(html(result, BEST))
    assert verdict(result, BEST).headline in page
    assert "By hand" not in page
    code = "import sys; import autotune.report; assert not {'torch', 'optuna'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_page_loads_nothing_and_runs_nothing(stored: SearchResult) -> None:
    page = html(stored, BEST)
    assert not re.search(r"url\(|@import", page)
    for tag, attrs in _Elements(page).tags:
        assert tag not in {"script", "link", "img", "iframe", "object", "base"}
        assert not {"src", "href", "srcset"} & attrs.keys()
        assert not [name for name in attrs if name.startswith("on")]


def test_whatever_a_program_is_called_or_says_is_text(stored: SearchResult) -> None:
    program = replace(stored.head.program, args=(HOSTILE,))
    named = replace(stored, head=replace(stored.head, program=program), reason=HOSTILE)
    assert any(record.ending == CRASH for record in named.records)
    elements = _Elements(html(named, BEST))
    assert not [tag for tag, _ in elements.tags if tag in {"script", "b"}]
    assert "alert('x')" in " ".join(elements.words)
    rows = [line for line in markdown(named, BEST).splitlines() if line.startswith("|")]
    counts = {len(re.findall(r"(?<!\\)\|", line)) for line in rows}
    assert counts <= {4, 5, 6, 10}


def test_a_diff_stands_on_the_page_as_it_is_applied(tmp_path: Path) -> None:
    text = TRAINS.replace("# as people write it", '"""```\n<b>bold</b>\n```"""')
    result = searched(tmp_path, text, workers=1, threads=1)
    diff = by_hand(result).diff
    assert "```" in diff
    page = html(result, BEST)
    shown = re.search(r'<pre class="diff">(.*?)</pre>', page, re.DOTALL)
    assert shown is not None
    assert "".join(_Elements(shown[1]).words) == diff
    fence = re.search(r"^(`{4,})diff\n(.*?)\n\1$", markdown(result, BEST), re.DOTALL | re.MULTILINE)
    assert fence is not None
    assert f"{fence[2]}\n" == diff


def test_a_page_of_many_trials_stays_small(stored: SearchResult) -> None:
    many = replace(stored, records=stored.records * 200)
    page = html(many, BEST)
    assert len(page.encode()) < MOST_BYTES
    left_out = len(many.records) - charts.MOST_ROWS
    assert f"{left_out} more: <code>autotune show --trials</code>" in page
    assert f"{left_out} more: `autotune show --trials`" in markdown(many, BEST)


def test_how_to_repeat_a_search_names_what_it_depends_on(tmp_path: Path) -> None:
    result = searched(tmp_path, TRAINS, workers=1)
    git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
    for words in (["init", "-q"], ["add", "."], ["commit", "-qm", "first"]):
        subprocess.run([*git, *words], cwd=tmp_path, check=True)
    head = subprocess.run(
        ["git", "rev-parse", "HEAD"], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    said = {row.label: row.text for row in repeat(result)}
    assert said["commit"] == head.stdout.strip()
    assert said["command"] == command(result.head)
    (tmp_path / "train.py").write_text(TRAINS + "\n# edited\n")
    edited = replace(result.head, program=parse_program("train.py", (), tmp_path))
    now = {row.label: row.text for row in repeat(replace(result, head=edited))}
    assert now["commit"].startswith("none that holds")


def test_the_command_of_a_search_has_what_differs_from_the_defaults(tmp_path: Path) -> None:
    head = searched(tmp_path, TRAINS).head
    space = replace(
        head.space, name="default", knobs={"workers": (1, 2), "threads": None},
        fixed={"precision": "bf16"}, requested=frozenset({"workers"}),
    )  # fmt: skip
    options = replace(head.options, budget_s=90.0, seed=3, may_change=MayChange.BATCH)
    assert command(replace(head, space=space, options=options)) == (
        "autotune search --budget 90s --tune workers --set workers=1,2 --set precision=bf16 "
        "--may-change batch --seed 3 train.py"
    )


def test_of_each_change_is_said_what_it_may_change_in_the_training(tmp_path: Path) -> None:
    result = begin(tmp_path, Script({"precision": {"bf16": 1.4}}), TWO).go_on(120.0)
    assert {one.setting for one in verdict(result, BEST).changes} == {"precision"}
    assert charts.level("precision") == "rounding"
    assert charts.level("--depth") == "what is learned: yours to judge"
    (flag,) = charts.changed(
        replace(result, best=result.baseline, candidate=Config({**result.baseline, "--depth": 3}),
                baseline=Config({**result.baseline, "--depth": 2})), (),
    )  # fmt: skip
    assert flag.values == "2 → 3"
