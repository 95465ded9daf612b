"""Two reports on one page: both whole, told apart, and escaped."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.measurement.goal import Goal, Objective
from autotune.program.config import Config
from autotune.report import html, html_of_two
from autotune.results.result import SearchResult
from autotune.results.two_runs import TwoRuns, as_data
from tests.made import A100
from tests.report.test_report import BEST, HOSTILE, _Elements, found, text_of

__all__ = ["found"]


def other_of(result: SearchResult, name: str = "other") -> SearchResult:
    """Return a search that recommends another config."""
    best = result.best.replace(workers=2)
    return replace(result, run_dir=result.run_dir.with_name(name), best=best)


def test_both_reports_are_whole_and_apart(found: SearchResult) -> None:
    page = html_of_two(TwoRuns(found, other_of(found)))
    for result in (found, other_of(found)):
        alone = text_of(html(result, result.run_dir / "best.yaml")).partition("<body>")[2]
        assert alone in text_of(page)
    ids = [attrs["id"] for _, attrs in _Elements(page).tags if "id" in attrs]
    assert len(ids) == len(set(ids)) == 2
    raw = re.findall(r'type="application/json" id="autotune-\d">(.*?)</script>', page, re.DOTALL)
    assert [json.loads(one)["run"] for one in raw] == [
        str(result.run_dir) for result in (found, other_of(found))
    ]


def test_the_page_loads_nothing_runs_nothing_and_escapes_what_programs_say(
    found: SearchResult,
) -> None:
    program = replace(found.head.program, args=(HOSTILE,))
    hostile = replace(
        found,
        head=replace(found.head, program=program),
        reason=HOSTILE,
        run_dir=found.run_dir.with_name("<b>run<b>"),
    )
    page = html_of_two(TwoRuns(hostile, other_of(hostile, "<i>other<i>")))
    elements = _Elements(page)
    scripts = [attrs["type"] for tag, attrs in elements.tags if tag == "script"]
    assert scripts == ["application/json"] * 2
    assert not {"b", "i", "link", "img", "iframe"} & {tag for tag, _ in elements.tags}
    assert not [attrs for _, attrs in elements.tags if {"src", "href", "onload"} & attrs.keys()]
    assert "<b>run<b> and <i>other<i>" in " ".join("".join(elements.words).split())


def test_each_half_is_as_small_as_its_report(found: SearchResult) -> None:
    record = found.records[-1]
    many = replace(found, records=(*found.records, *([record] * 200)))
    alone = html(many, BEST).encode()
    both = html_of_two(TwoRuns(many, other_of(many))).encode()
    assert len(alone) < 200_000
    assert len(both) < 2 * len(alone) + 10_000


def test_the_knobs_of_the_recommended_configs_are_compared(found: SearchResult) -> None:
    runs = TwoRuns(found, other_of(found))
    assert [(c.name, c.first, c.second) for c in runs.configs] == [("workers", "1", "2")]
    unknown = Config({k: v for k, v in found.best.items() if k != "workers"})
    fewer = TwoRuns(found, replace(found, best=unknown, run_dir=Path("fewer")))
    assert [(c.name, c.first, c.second) for c in fewer.configs] == [("workers", "1", "0")]
    assert runs.command == f"autotune compare train other {found.head.program}"
    assert not TwoRuns(found, found).command


@pytest.mark.parametrize(
    ("change", "name", "prevents"),
    [
        ({"program": {"args": ("--lr", "1")}}, "program", True),
        ({"program": {"fingerprint": "another"}}, "source of the program", True),
        ({"hardware": {"cpu_quota": 64}}, "cores", True),
        ({"hardware": {"gpus": (A100,)}}, "GPUs", True),
        ({"hardware": {"versions": {"torch": "3.0"}}}, "torch", True),
        ({"options": {"goal": Goal(Objective.MEMORY)}}, "objective", True),
        ({"options": {"budget_s": 7.0}}, "budget", False),
    ],
)
def test_what_makes_figures_incomparable_is_named(
    found: SearchResult, change: dict[str, dict[str, object]], name: str, *, prevents: bool
) -> None:
    ((part, values),) = change.items()
    head = replace(found.head, **{part: replace(getattr(found.head, part), **values)})
    runs = TwoRuns(found, replace(other_of(found), head=head))
    assert name in [one.name for one in runs.circumstances if one.prevents is prevents]
    assert runs.is_comparable is not prevents
    assert (name in runs.said) is prevents
    assert as_data(runs)["is_comparable"] is not prevents
    assert name in text_of(html_of_two(runs))


def test_runs_of_one_name_are_told_apart_by_their_paths(found: SearchResult) -> None:
    elsewhere = replace(found, run_dir=Path("/elsewhere/train"))
    assert TwoRuns(found, elsewhere).names == (str(found.run_dir), "/elsewhere/train")
