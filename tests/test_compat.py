"""What `make compat` writes; what it does takes gigabytes, and is no part of the suite."""

from tests import compat
from tests.compat import BEGIN, END, PAGE, Row, with_row

PYTESTS = "===== 1120 passed, 9 skipped, 61 deselected in 212.50s (0:03:32) ====="
RESULT = {
    "finding": "faster",
    "best": {
        "config": {"workers": 1},
        "speedup": {"estimate": 1.571, "low": 1.4, "high": 1.76},
    },
}


def test_a_release_has_one_row_and_they_stand_in_the_order_of_releases() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert page.count(BEGIN) == page.count(END) == 1
    page = f"before\n{BEGIN}{END}after\n"
    for torch, suite in (("2.10.0", "1 passed"), ("2.6.0", "2 passed"), ("2.10.0", "3 passed")):
        page = with_row(page, Row(torch, suite, "1.50x [1.40, 1.60]"))
    rows = [line for line in page.splitlines() if "passed" in line]
    assert [row[:21] for row in rows] == ["| 2.6.0 | 2 passed | ", "| 2.10.0 | 3 passed |"]
    assert page.startswith("before\n")
    assert page.endswith("after\n")


def test_a_row_says_what_the_suite_and_the_search_came_to() -> None:
    assert compat._counts(PYTESTS) == "1120 passed, 9 skipped"
    assert compat._finding(RESULT) == "1.57x [1.40, 1.76]"
    nothing = {"finding": "no_difference", "best": {**RESULT["best"], "config": {}}}  # type: ignore[dict-item]
    assert compat._finding(nothing) == "no difference"
