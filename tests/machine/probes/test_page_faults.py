"""What a page fault costs is measured, and how many there were is counted."""

from __future__ import annotations

import mmap

import pytest

from autotune.machine.probes import page_faults

PAGES = 2048
LARGEST_PAGE = 2 << 20  # where the kernel hands out huge pages


def test_a_page_fault_takes_time_but_no_millisecond() -> None:
    """It was 1.1 microseconds on a 2-core virtual machine; most of it is filling the page."""
    assert 0.0 < page_faults.seconds_each() < 1e-3


def test_without_memory_nothing_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(mmap, "mmap", fail)
    assert page_faults.seconds_each() == 0.0


def test_each_page_that_is_touched_first_is_counted() -> None:
    before = page_faults.count()
    with mmap.mmap(-1, PAGES * mmap.PAGESIZE, access=mmap.ACCESS_COPY) as area:
        for page in range(PAGES):
            area[page * mmap.PAGESIZE] = 1
    assert page_faults.count() - before >= PAGES * mmap.PAGESIZE // LARGEST_PAGE
