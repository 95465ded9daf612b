"""The report in a real browser: Debian's chromium, which CI installs."""

import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.report import html
from autotune.results.result import SearchResult
from tests.exports.stored import BEST, HOSTILE, stored

__all__ = ["stored"]
pytestmark = [pytest.mark.browser, pytest.mark.slow]

CHROMIUM = shutil.which("chromium") or ""


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


def test_the_page_opens_without_an_error_or_a_request(stored: SearchResult, tmp_path: Path) -> None:
    program = replace(stored.head.program, args=(HOSTILE,))
    named = replace(stored, head=replace(stored.head, program=program))
    page, log = tmp_path / "report.html", tmp_path / "net.json"
    page.write_text(html(named, BEST), encoding="utf-8")
    seen = chromium(page, "--dump-dom", f"--log-net-log={log}")
    assert not re.findall(r".*CONSOLE.*", seen.stderr)
    assert "<figure>" in seen.stdout
    asked = set(re.findall(r'"url":"((?:https?|file)://[^"]*)"', log.read_text()))
    own = {url for url in asked if url.endswith("report.html")}
    others = {url for url in asked - own if "report" in url or "://x" in url}
    assert not others


@pytest.mark.parametrize("width", [360, 1200])
def test_nothing_is_wider_than_the_screen(stored: SearchResult, tmp_path: Path, width: int) -> None:
    inner, outer = tmp_path / "report.html", tmp_path / "outer.html"
    inner.write_text(html(stored, BEST), encoding="utf-8")
    # In a frame, because chromium's window is not narrower than 500
    outer.write_text(
        f'<title></title><iframe id="f" src="report.html" width="{width}" height="800"></iframe>'
        "<script>onload = () => { document.title = document.getElementById('f')"
        ".contentDocument.documentElement.scrollWidth }</script>",
        encoding="utf-8",
    )
    seen = chromium(outer, "--dump-dom", "--allow-file-access-from-files")
    title = re.search(r"<title>(\d+)</title>", seen.stdout)
    assert title is not None
    assert int(title[1]) <= width
