"""The report in a real browser: Debian's chromium, which CI installs."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from autotune.results.two_runs import TwoRuns

from autotune.report import html, html_of_two
from autotune.results.result import SearchResult
from tests.report.test_report import BEST, HOSTILE, found

__all__ = ["found"]
pytestmark = [pytest.mark.browser, pytest.mark.slow]

CHROMIUM = shutil.which("chromium") or ""
OVERFLOW = "<script>document.title = document.documentElement.scrollWidth</script></body>"


@pytest.fixture(scope="module", autouse=True)
def _browser() -> None:
    if not CHROMIUM:
        assert not os.environ.get("CI"), "CI has a browser"
        pytest.skip("chromium is not installed")


def chromium(page: Path, *options: str, width: int = 1000) -> subprocess.CompletedProcess[str]:
    """Show a page, and return what the browser printed."""
    command = [
        CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        f"--user-data-dir={page.parent / 'profile'}", f"--window-size={width},800",
        "--enable-logging=stderr", "--virtual-time-budget=2000", *options, page.as_uri(),
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


def test_the_page_opens_without_an_error_or_a_request(found: SearchResult, tmp_path: Path) -> None:
    program = replace(found.head.program, args=(HOSTILE,))
    named = replace(found, head=replace(found.head, program=program))
    page, log = tmp_path / "report.html", tmp_path / "net.json"
    page.write_text(html(named, BEST), encoding="utf-8")
    seen = chromium(page, "--dump-dom", f"--log-net-log={log}")
    assert not re.findall(r".*CONSOLE.*", seen.stderr)
    assert "<svg" in seen.stdout
    asked = set(re.findall(r'"url":"((?:https?|file)://[^"]*)"', log.read_text()))
    own = {url for url in asked if url.endswith("report.html")}
    others = {url for url in asked - own if "report" in url or "://x" in url}
    assert not others


@pytest.mark.parametrize("width", [500, 1200])  # chromium's window is not narrower than 500
def test_nothing_is_wider_than_the_window(found: SearchResult, tmp_path: Path, width: int) -> None:
    page = tmp_path / "report.html"
    page.write_text(html(found, BEST).replace("</body>", OVERFLOW), encoding="utf-8")
    title = re.search(r"<title>(\d+)</title>", chromium(page, "--dump-dom", width=width).stdout)
    assert title is not None
    assert int(title[1]) <= width


def in_frame(page: str, width: int, value: str, folder: Path) -> Any:
    """Return a value of JavaScript's about a page in a frame, which may be as narrow as wanted."""
    inner, outer = folder / "report.html", folder / "outer.html"
    inner.write_text(page, encoding="utf-8")
    outer.write_text(
        f'<title></title><iframe id="f" src="report.html" width="{width}" height="800"></iframe>'
        "<script>onload = () => { const page = document.getElementById('f').contentDocument;"
        f"document.title = JSON.stringify({value}) }}</script>",
        encoding="utf-8",
    )
    seen = chromium(outer, "--dump-dom", "--allow-file-access-from-files")
    title = re.search(r"<title>(.+)</title>", seen.stdout)
    assert title is not None
    return json.loads(title[1])


def test_a_telephone_shows_it_without_scrolling_sideways(
    found: SearchResult, tmp_path: Path
) -> None:
    assert in_frame(html(found, BEST), 360, "page.documentElement.scrollWidth", tmp_path) <= 360


@pytest.mark.parametrize(("width", "are_stacked"), [(360, True), (1400, False)])
def test_two_reports_stand_side_by_side_or_on_a_telephone_one_below_the_other(
    found: SearchResult, tmp_path: Path, width: int, *, are_stacked: bool
) -> None:
    page = html_of_two(TwoRuns(found, replace(found, run_dir=Path("other"))))
    places = "[...page.querySelectorAll('article')].map(a => a.getBoundingClientRect().top)"
    value = f"[page.documentElement.scrollWidth, ...{places}]"
    needed, first, second = in_frame(page, width, value, tmp_path)
    assert needed <= width
    assert (second > first) is are_stacked
