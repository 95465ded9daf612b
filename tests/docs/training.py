"""Writes the tables of docs/reference/same-training.md: ``python -m tests.docs.training``.

Their rows are what ``tests/test_planted.py`` plants. ``test_site.py`` compares the page with them.
"""

import re
from pathlib import Path

from tests.faults import FAULTS, KEPT, setting

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "same-training.md"
BARS = "\n|---|---|---|"
FOUND = "| what a program may do | setting that would change its training | found by |" + BARS
DONE = "| what a program may do | setting | what autotune does |" + BARS
TABLES = {
    FOUND: [f"| {one.says} | `{setting(one)}` | {one.found_by} |" for one in FAULTS.values()],
    DONE: [f"| {one.says} | `{setting(one)}` | {one.why} |" for one in KEPT.values()],
}


def markdown(page: str) -> str:
    for head, rows in TABLES.items():
        parts = re.split(re.escape(head) + r"\n(?:\|.*\n)*", page)
        assert len(parts) == 2, head
        page = "\n".join([head, *rows, ""]).join(parts)
    return page


if __name__ == "__main__":
    PAGE.write_text(markdown(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
