"""With which torch autotune works: ``make compat``, or ``make compat TORCH='2.6 newest'``.

Each release gets an environment of its own in a temporary folder, with PyPI's ordinary wheels,
which is removed before the next one is made (5.5 GB). In it, autotune is installed beside that
torch by the command of the guide, which must leave torch as it is; then the quick suite and one
real search run. The row of a release is written to docs/start/install.md as soon as it is known.

Refused: torch's nightly builds. They are for the workflow that looks ahead, not for a table.
"""

from __future__ import annotations

import datetime
import json
import platform
import re
import subprocess
import sys
import tempfile
import venv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.program.environment import OLDEST_TORCH, release_of

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "start" / "install.md"
HEAD = "| torch | quick suite | a search of 90 s | Python | date |\n|---|---|---|---|---|\n"
BEGIN, END = "<!-- by make compat -->\n", "<!-- end -->\n"
QUICK = ("-q", "-n", "2", "--timeout", "300", "-m", "not slow and not cluster and not pictures")
SEARCH = ("search", "--budget", "90s", "--quiet", "--json", "--output", "best.yaml")
PROGRAM = "examples/digits_cnn/train.py"


class Failed(Exception):
    """A release does not pass; the text says where, with the end of what was printed."""


@dataclass(frozen=True)
class Row:
    """What a release of torch does: counts of tests, and what a search found."""

    torch: str
    suite: str
    search: str

    def __str__(self) -> str:
        today = datetime.datetime.now(datetime.UTC).date()
        cells = (self.torch, self.suite, self.search, platform.python_version(), str(today))
        return f"| {' | '.join(cells)} |\n"


def chosen() -> list[str]:
    """Return the oldest release that is supported, one in the middle, and pip's newest."""
    said = _said([sys.executable, "-m", "pip", "index", "versions", "torch"], ROOT)
    listed = re.findall(r"\d+\.\d+\.\d+", said.partition("Available versions:")[2])
    known = sorted({one for one in map(release_of, listed) if one >= release_of(OLDEST_TORCH)})
    middle = known[len(known) // 2]
    return [OLDEST_TORCH, ".".join(map(str, middle)), ""]


def passed(release: str) -> Row:
    """Return the row of a release, such as ``2.10``; empty takes the one that pip takes.

    Raises:
        Failed: pip replaced torch, a test failed, or the search ended with another status than 0.
    """
    with tempfile.TemporaryDirectory(prefix="compat-") as folder:
        home = Path(folder) / "env"
        venv.create(home, with_pip=True)
        python = str(home / "bin" / "python")
        pip = [python, "-m", "pip", "install", "--quiet"]
        _said([*pip, f"torch=={release}.*" if release else "torch"], ROOT)
        before = _torch_of(python)
        _said([*pip, "."], ROOT)
        if (after := _torch_of(python)) != before:
            raise Failed(f"'pip install .' replaced torch {before} by {after}")
        # What the tests need; torchvision is named here alone, as each fits one torch only
        _said([*pip, "--editable", ".[dev]", "torchvision", f"torch=={before}"], ROOT)
        return measured(python, Path(folder))


def measured(python: str, folder: Path) -> Row:
    """Run the quick suite and a search by an environment's Python; return the row of its torch.

    Raises:
        Failed: A test failed, or the search ended with another status than 0.
    """
    suite = _said([python, "-m", "pytest", *QUICK], ROOT).strip().splitlines()[-1]
    found = _said([python, "-m", "autotune", *SEARCH, str(ROOT / PROGRAM)], folder)
    return Row(_torch_of(python), _counts(suite), _finding(json.loads(found)))


def _torch_of(python: str) -> str:
    code = "from importlib.metadata import version; print(version('torch'))"
    return _said([python, "-c", code], ROOT).strip()


def _counts(line: str) -> str:
    """Return the counts of pytest's last line: ``1120 passed, 9 skipped``."""
    return ", ".join(re.findall(r"\d+ (?:passed|skipped)", line))


def _finding(result: Mapping[str, Any]) -> str:
    """Return what a search found, as a cell."""
    best = result["best"]
    speedup = best["speedup"]
    bounds = f"{speedup['estimate']:.2f}x [{speedup['low']:.2f}, {speedup['high']:.2f}]"
    return bounds if best["config"] else str(result["finding"]).replace("_", " ")


def _said(words: Sequence[str], folder: Path) -> str:
    """Run a command to its end and return its stdout.

    Raises:
        Failed: It ended with another status than 0.
    """
    done = subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        failed = [one for one in done.stdout.splitlines() if one.startswith(("FAILED", "ERROR"))]
        end = "\n".join([*failed, *f"{done.stdout}\n{done.stderr}".strip().splitlines()[-20:]])
        raise Failed(f"{' '.join(words)} ended with {done.returncode}:\n{end}")
    return done.stdout


def with_row(page: str, row: Row) -> str:
    """Return the page with a row in place of that of the same torch, in the order of releases."""
    before, rest = page.split(BEGIN)
    table, after = rest.split(END)
    rows = {line.split(" ")[1]: f"{line}\n" for line in table.splitlines()[2:]}
    rows[row.torch] = str(row)
    return "".join(
        [before, BEGIN, HEAD, *(rows[one] for one in sorted(rows, key=release_of)), END, after]
    )


def main(releases: Sequence[str]) -> int:
    """Try each release and write its row; the status is the number of those that fail.

    ``oldest``, ``middle`` and ``newest`` are releases, too; without any, all three are tried.
    """
    failed = 0
    names = ("oldest", "middle", "newest")
    three = (
        {}
        if releases and not set(releases) & set(names)
        else dict(zip(names, chosen(), strict=True))
    )
    for release in [three.get(one, one) for one in releases or names]:
        print(f"torch {release or 'of pip'} …", flush=True)
        try:
            row = passed(release)
        except Failed as error:
            print(error, flush=True)
            failed += 1
            continue
        page = PAGE.read_text(encoding="utf-8")
        PAGE.write_text(with_row(page, row), encoding="utf-8")
        print(row, end="", flush=True)
    return failed


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
