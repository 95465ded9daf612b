"""The report in a real browser: Debian's chromium, which CI installs."""

import json
import os
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.measurement.interval import Interval
from autotune.program.config import Config, KnobValue
from autotune.report import html
from autotune.results.result import Contribution, SearchResult
from tests.exports.stored import BEST, HOSTILE, stored
from tests.exports.test_by_hand import TRAINS, searched

__all__ = ["stored"]
pytestmark = [pytest.mark.browser, pytest.mark.slow]

CHROMIUM = shutil.which("chromium") or ""
PRINT = "@media print"
# Width, colours, and whether the rules of print are those of the screen
VIEWS = [(1200, "light", False), (1200, "dark", False), (360, "light", False), (700, "light", True)]
LOOK = (Path(__file__).parent / "look.js").read_text(encoding="utf-8")


@pytest.fixture(scope="module", autouse=True)
def _browser() -> None:
    if not CHROMIUM:
        assert not os.environ.get("CI"), "CI has a browser"
        pytest.skip("chromium is not installed")


def chromium(page: Path, *options: str, width: int = 1300) -> subprocess.CompletedProcess[str]:
    """Show a page, and return what the browser printed."""
    command = [
        CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
        f"--user-data-dir={page.parent / 'profile'}", f"--window-size={width},800",
        "--enable-logging=stderr", "--virtual-time-budget=2000", *options, page.as_uri(),
    ]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)


def full(stored: SearchResult, folder: Path) -> SearchResult:
    """Return a result that fills every part of the page, with a long line in most of them."""
    changes: dict[str, KnobValue] = {
        "workers": 1, "threads": 1, "batch_size": 16, "precision": "bf16",
        "memory_format": "channels_last", "optimizer": "fused", "compile": "default",
    }  # fmt: skip
    by_hand = searched(folder, TRAINS, None, **changes)
    gains = [
        Contribution(knob, by_hand.baseline[knob], value, Interval(1 + n / 10, 0.7, 1.4 + n))
        for n, (knob, value) in enumerate(changes.items())
    ]
    program = replace(by_hand.head.program, args=(HOSTILE,))
    return replace(
        stored,
        best=Config({**by_hand.best}),
        baseline=by_hand.baseline,
        applied=by_hand.applied,
        head=replace(by_hand.head, program=program),
        contributions=tuple(gains),
        warnings=(HOSTILE,),
    )


def test_words_meet_no_lines_and_fit_in_light_dark_on_a_phone_and_in_print(
    stored: SearchResult, tmp_path: Path
) -> None:
    page = html(full(stored, tmp_path), BEST)
    assert PRINT in page
    (tmp_path / "screen.html").write_text(page, encoding="utf-8")
    (tmp_path / "print.html").write_text(page.replace(PRINT, "@media all"), encoding="utf-8")
    # In frames, because chromium's window is not narrower than 500; a frame has the colours that
    # the page around it asks for
    frames = "".join(
        f'<iframe src="{"print" if is_print else "screen"}.html" width="{width}" height="800" '
        f'style="color-scheme: {colours}"></iframe>'
        for width, colours, is_print in VIEWS
    )
    outer = tmp_path / "outer.html"
    outer.write_text(f"<pre></pre>{frames}<script>{LOOK}</script>", encoding="utf-8")
    seen = chromium(outer, "--dump-dom", "--allow-file-access-from-files")
    assert not re.findall(r".*CONSOLE.*", seen.stderr)
    told = re.search(r"<pre>(.*?)</pre>", seen.stdout, re.DOTALL)
    assert told is not None
    views = json.loads(told[1])
    assert len(views) == len(VIEWS)
    for (width, colours, is_print), view in zip(VIEWS, views, strict=True):
        assert view["width"] <= width, (width, view["widest"])
        assert view["meetings"] == [], (width, colours, is_print)
        assert view["smallest_px"] >= 11.0
        assert view["faint"] == [], colours
        assert view["is_dark"] is (colours == "dark" and not is_print)
        assert view["shows_trials"] is is_print, "they are folded on a screen"
