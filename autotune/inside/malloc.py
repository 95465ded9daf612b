"""What glibc's malloc does with memory that was freed.

It returns large blocks to the system as soon as they are freed, and the end of its heap when that
grows beyond a threshold. A training step frees and takes the same blocks again and again, and each
page of them costs a page fault. The thresholds rise while a process runs, up to the largest block
that it has freed. So configs that take turns would inherit them from each other: a config with
small blocks would keep what another one frees. Each turn sets what its config would have alone.

Source: mallopt(3); glibc's malloc/malloc.c ("dynamic mmap threshold").
"""

from __future__ import annotations

import ctypes
import os
from functools import cache
from typing import Any

from autotune.knobs.memory import NEWER, VARIABLE
from autotune.program.profile import AllocatorFacts

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -3, -4  # malloc.h
USUAL_MMAP_MAX = 65536
FIRST_THRESHOLD, LAST_THRESHOLD = 128 << 10, 32 << 20  # of blocks that are mapped alone
NEVER = -1  # the end of the heap is not returned
TUNED = ("trim_threshold", "mmap_threshold", "mmap_max", "top_pad")  # any fixes both thresholds
IS_MMAPPED = 2  # in the word before a block
EXACT = 4096  # bytes to which the threshold is found


class _Info(ctypes.Structure):
    """What ``mallinfo2`` returns."""

    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


@cache
def _libc() -> Any:
    """Return the C library if its malloc is glibc's and serves this process; else None."""
    libc = ctypes.CDLL(None)
    if not (hasattr(libc, "mallopt") and hasattr(libc, "mallinfo2")):
        return None
    libc.malloc.restype, libc.malloc.argtypes = ctypes.c_void_p, (ctypes.c_size_t,)
    libc.free.restype, libc.free.argtypes = None, (ctypes.c_void_p,)
    libc.mallinfo2.restype = _Info
    before = libc.mallinfo2().hblks
    block = libc.malloc(2 * LAST_THRESHOLD)  # above any threshold, and never touched
    is_own = bool(block) and libc.mallinfo2().hblks == before + 1
    libc.free(block)
    return libc if is_own else None  # another malloc was loaded before it


def allocator_facts(device: str) -> AllocatorFacts:
    """Return what allocates this process's memory."""
    return AllocatorFacts(
        mmap_threshold=mmap_threshold() if device == "cpu" else None,
        cuda_alloc_conf=os.environ.get(NEWER) or os.environ.get(VARIABLE, ""),
    )


def mmap_threshold() -> int | None:
    """Return from how many bytes on a block is mapped alone, and unmapped when freed.

    None where malloc is not glibc's, or the user's environment tunes it.
    """
    tunables = os.environ.get("GLIBC_TUNABLES", "")
    if any(f"MALLOC_{n.upper()}_" in os.environ or f"malloc.{n}=" in tunables for n in TUNED):
        return None
    if _libc() is None:
        return None
    low, high = FIRST_THRESHOLD // 2, LAST_THRESHOLD
    while high - low > EXACT:
        middle = (low + high) // 2
        low, high = (low, middle) if _is_mapped(middle) else (middle, high)
    return high


def _is_mapped(size: int) -> bool:
    """Return whether a block of this size is mapped alone.

    Freeing such a block would raise the threshold, so it is left; untouched, it takes no memory.
    """
    libc, held = _libc(), list[int]()
    while True:
        heap = libc.mallinfo2().arena
        block = libc.malloc(size)
        if not block:  # the user limits the memory of processes
            return True
        is_mapped = bool(
            ctypes.c_size_t.from_address(block - ctypes.sizeof(ctypes.c_size_t)).value & IS_MMAPPED
        )
        if not is_mapped:
            held.append(block)
        if is_mapped or libc.mallinfo2().arena > heap:  # not one of the heap's free blocks
            for one in held:
                libc.free(one)
            return is_mapped


def keep_freed(*, keep: bool, threshold: int) -> None:
    """Keep freed memory from now on, or return it as the program does without autotune.

    Args:
        threshold: ``mmap_threshold()`` of the program as written.
    """
    libc = _libc()
    if libc is None:
        return
    libc.mallopt(M_MMAP_MAX, 0 if keep else USUAL_MMAP_MAX)
    libc.mallopt(M_MMAP_THRESHOLD, threshold)
    returned = 2 * threshold if threshold > FIRST_THRESHOLD else FIRST_THRESHOLD
    libc.mallopt(M_TRIM_THRESHOLD, NEVER if keep else returned)
