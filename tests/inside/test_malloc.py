"""What malloc keeps, seen by page faults. Each test has a process, which keeps the settings."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

import pytest

from autotune.inside import malloc

LARGE = 5 << 20
PROGRAM = f"""
import ctypes, json
from autotune.inside import malloc
from autotune.machine.probes.page_faults import page_faults

libc = malloc._libc()

def faults(size):
    block = libc.malloc(size)  # the first time maps it, and raises the threshold when it is freed
    ctypes.memset(block, 1, size)
    libc.free(block)
    before = page_faults()
    for _ in range(10):
        block = libc.malloc(size)
        ctypes.memset(block, 1, size)
        libc.free(block)
    return (page_faults() - before) / 10

first = malloc.mmap_threshold()
larger = {2 * LARGE}
returned = faults({LARGE}), faults(larger)
threshold = malloc.mmap_threshold()
seen = {{"first": first, "returned": returned, "threshold": threshold}}
for keep in (True, False, True):
    malloc.keep_freed(keep=keep, threshold={LARGE} + 2 * {malloc.EXACT})
    seen[f"{{len(seen)}} {{keep}}"] = faults({LARGE}), faults(larger)
print(json.dumps(seen))
"""


def run(program: str, **env: str) -> Any:
    command = [sys.executable, "-c", program]
    own = {**os.environ, **env}
    done = subprocess.run(command, capture_output=True, text=True, check=True, env=own)
    return json.loads(done.stdout)


@pytest.mark.skipif(malloc._libc() is None, reason="malloc is not glibc's")
def test_freed_memory_is_kept_and_returned_again() -> None:
    seen = run(PROGRAM)
    pages = 2 * LARGE / os.sysconf("SC_PAGE_SIZE")
    assert malloc.FIRST_THRESHOLD <= seen["first"] + malloc.EXACT < LARGE
    # the larger block was mapped when it was first freed; from then on it comes from the heap
    assert seen["threshold"] == pytest.approx(2 * LARGE, abs=3 * malloc.EXACT)
    assert seen["3 True"][1] < 0.01 * pages
    assert seen["4 False"][1] > 0.9 * pages
    assert seen["5 True"][1] < 0.01 * pages


def test_where_the_environment_tunes_malloc_nothing_is_known_of_it() -> None:
    asked = "from autotune.inside.malloc import mmap_threshold; print(mmap_threshold() or 0)"
    for env in (
        {"MALLOC_TRIM_THRESHOLD_": "1"},
        {"MALLOC_MMAP_MAX_": "9"},
        {"GLIBC_TUNABLES": "glibc.malloc.arena_max=1:glibc.malloc.mmap_threshold=4096"},
    ):
        assert run(asked, **env) == 0
