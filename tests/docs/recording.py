"""The recording, the picture and the verdicts in the guide: all of one real search.

    python -m tests.docs.recording search --budget 3m examples/digits_cnn/train.py

runs that autotune command in a terminal of 80 x 24, on the machine as it is, and fills

- ``docs/images/search.svg``: what it showed, as it went by,
- ``docs/images/report.png``: the page of that search,
- the verdict in ``README.md`` and ``docs/start/first-search.md``.

Each carries the id of the search. ``test_site.py`` compares them.
"""

import re
import sys
from hashlib import sha256
from pathlib import Path
from shlex import join

from autotune import api
from tests.docs import picture, terminal
from tests.docs.pages import ROOT

RECORDING = ROOT / "docs" / "images" / "search.svg"
FILLED = (ROOT / "README.md", ROOT / "docs" / "start" / "first-search.md")
MARK = re.compile(r"<!-- recorded: (?P<id>.*?) -->\n(?:```text\n(?P<text>.*?)```\n)?", re.DOTALL)


def search_id(folder: Path) -> str:
    """Return what names a search in all that is made of it: its date, and a digest of it."""
    info = api.load(str(folder)).head
    return f"{info.created} {sha256(repr(info).encode()).hexdigest()[:12]}"


def verdict(rows: list[str]) -> str:
    """Return the verdict among the rows of a search's last screen: from its first line on."""
    starts = [row[:2] in {"✓ ", "= ", "? "} for row in rows]
    assert True in starts, "the last screen has no verdict: " + "\n".join(rows)
    return "\n".join(rows[starts.index(True) :]).rstrip() + "\n"


def verdict_in(page: Path) -> tuple[str, str]:
    """Return the id and the text of the verdict in a page."""
    found = MARK.search(page.read_text(encoding="utf-8"))
    assert found, page
    return found["id"], found["text"]


def fill(page: Path, named: str, text: str) -> None:
    """Write a verdict into a page, in the place of the earlier one."""
    written = page.read_text(encoding="utf-8")
    assert len(MARK.findall(written)) == 1, page
    block = f"<!-- recorded: {named} -->\n```text\n{text}```\n"
    page.write_text(MARK.sub(lambda _: block, written), encoding="utf-8")


def main(words: list[str]) -> None:
    """Run an autotune command that searches, and fill what shows it."""
    printed, status = terminal.record([sys.executable, "-m", "autotune", *words])
    if status:
        raise SystemExit(f"Nothing is written: the command ended with {status}.")
    folder = api.load().run_dir
    named = search_id(folder)
    shown = terminal.screens(join(["autotune", *words]), printed)
    text = verdict(terminal.text_of(shown[-1][1]))
    RECORDING.write_text(terminal.svg(named, shown), encoding="utf-8")
    picture.take(folder / "report.html", named)
    for page in FILLED:
        fill(page, named, text)
    sys.stderr.write(f"{RECORDING.stat().st_size / 1000:.0f} KB of search {named}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
