"""The recording, the picture and the printed texts in the guide: all of one real search.

    python -m tests.docs.recording search --budget 3m examples/digits_cnn/train.py

runs that autotune command in a terminal of 80 x 24, on the machine as it is, and fills

- ``docs/images/search.svg``: what it showed, as it went by,
- ``docs/images/report.png``: the page of that search,
- the verdict in ``README.md`` and ``docs/start/first-search.md``,
- the file that it wrote, in ``docs/reference/best-yaml.md``,
- what ``autotune doctor`` then says of the program, in ``docs/use/find-out-why.md``.

Each carries the id of the search. ``test_site.py`` compares them.
"""

import re
import subprocess
import sys
from hashlib import sha256
from pathlib import Path
from shlex import join, split

from autotune import api
from autotune.results.finding import Finding
from autotune.results.output import BEST
from autotune.results.record import SearchInfo
from autotune.results.result import SearchResult
from tests.docs import picture, terminal
from tests.docs.pages import ROOT

RECORDING = ROOT / "docs" / "images" / "search.svg"
VERDICTS = (ROOT / "README.md", ROOT / "docs" / "start" / "first-search.md")
EXAMINED = ROOT / "docs" / "use" / "find-out-why.md"
WRITTEN = ROOT / "docs" / "reference" / "best-yaml.md"
MARK = re.compile(r"<!-- recorded: (?P<id>.*?) -->\n(?:```\w+\n(?P<text>.*?)```\n)?", re.DOTALL)


def search_id(info: SearchInfo) -> str:
    """Return what names a search in all that is made of it: its date, and a digest of it."""
    return f"{info.created} {sha256(repr(info).encode()).hexdigest()[:12]}"


def verdict(rows: list[str]) -> str:
    """Return the verdict among the rows of a search's last screen: from its first line on."""
    starts = [row[:2] in {"✓ ", "= ", "? "} for row in rows]
    assert True in starts, "the last screen has no verdict: " + "\n".join(rows)
    return "\n".join(rows[starts.index(True) :]).rstrip() + "\n"


def text_in(page: Path) -> tuple[str, str]:
    """Return the id and the text of the block in a page that is of a search."""
    found = MARK.search(page.read_text(encoding="utf-8"))
    assert found, page
    return found["id"], found["text"]


def fill(page: Path, named: str, text: str, language: str = "text") -> None:
    """Write what was printed into a page, in the place of the earlier text."""
    written = page.read_text(encoding="utf-8")
    assert len(MARK.findall(written)) == 1, page
    block = f"<!-- recorded: {named} -->\n```{language}\n{text}```\n"
    page.write_text(MARK.sub(lambda _: block, written), encoding="utf-8")


def config_of(result: SearchResult) -> str:
    """Return the file that holds what a search found."""
    found = Path(BEST) if result.finding is Finding.FASTER else result.own_file
    return found.read_text(encoding="utf-8")


def examined(program: str) -> str:
    """Return what the doctor says of a program, without what it says of the machine before."""
    doctor = [sys.executable, "-m", "autotune", "doctor", "--quiet", *split(program)]
    told = subprocess.run(doctor, stdout=subprocess.PIPE, text=True, check=True).stdout
    return told.partition("\n\n")[2]


def main(words: list[str]) -> None:
    """Run an autotune command that searches, and fill what shows it."""
    printed, status = terminal.record([sys.executable, "-m", "autotune", *words])
    if status:
        raise SystemExit(f"Nothing is written: the command ended with {status}.")
    result = api.load()
    named = search_id(result.head)
    shown = terminal.screens(join(["autotune", *words]), printed)
    text = verdict(terminal.text_of(shown[-1][1]))
    RECORDING.write_text(terminal.svg(named, shown), encoding="utf-8")
    picture.take(result.run_dir / "report.html", named)
    for page in VERDICTS:
        fill(page, named, text)
    fill(WRITTEN, named, config_of(result), "yaml")
    fill(EXAMINED, named, examined(str(result.head.program)))
    sys.stderr.write(f"{RECORDING.stat().st_size / 1000:.0f} KB of search {named}\n")


if __name__ == "__main__":
    main(sys.argv[1:])
