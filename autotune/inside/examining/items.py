"""Loads items of the training loader in this process, and finds out what their time goes into.

A thread looks every few milliseconds where the loading thread is, and the kernel tells how long
that one computed: so a slow item is known by its line, and by whether it computes or waits there.
The process is examined and then thrown away, so it does not matter that this moves the program's
random generators. Workers would do the same work, each on a copy of the data set.

Not covered: files that libraries open without Python.
"""

from __future__ import annotations

import os
import sys
import threading
from collections import Counter, defaultdict
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path
from time import perf_counter, thread_time
from types import FrameType
from typing import Any

import torch
from torch.utils.data import DataLoader
from torch.utils.data.dataloader import _DatasetKind

from autotune.inside.code.frames import OURS, Place, is_programs, stack
from autotune.machine.probes.host_load import queued_s
from autotune.measurement.examination import ItemsExamined

WATCHED_S = 1.0
MIN_ITEMS = 2
PART = 8  # items that are loaded of a batch, so that slow ones end in time
PERIOD_S = 0.002
SWITCH_S = 0.0005  # Python code gives way after this long, so that the look is in time


def examine_items(loader: DataLoader[Any]) -> ItemsExamined | None:
    """Return what loading items takes; None if that raises or data end at once."""
    lines, items = _Lines(), 0
    # The program's code may refuse to be called once more, in any way
    with suppress(Exception), _threads_of_a_worker(loader):
        batches = _batches(loader)
        next(batches)  # first calls open files and fill caches
        task = Path(f"/proc/self/task/{threading.get_native_id()}")
        began, computed_s, queued = perf_counter(), thread_time(), queued_s(task)
        with _opened() as opened, lines.watching():
            while items < MIN_ITEMS or perf_counter() - began < WATCHED_S:
                items += next(batches)
        seconds = perf_counter() - began
        # Ready to compute on a core that others use is not waiting
        computed_s = thread_time() - computed_s + queued_s(task) - queued
        where, within = lines.longest()
        share, opens = min(1.0, computed_s / seconds), opened[threading.get_ident()]
        return ItemsExamined(items, seconds / items, share, where, within, opens / items)
    return None


def _batches(loader: DataLoader[Any]) -> Iterator[int]:
    """Load parts of batches as the loader's only process would; yield how many items each has."""
    # Private names of torch, which its own iterator uses in the same way
    is_batched = loader._auto_collation  # noqa: SLF001
    while True:
        fetcher = _DatasetKind.create_fetcher(
            loader._dataset_kind,  # noqa: SLF001
            loader.dataset,
            is_batched,
            loader.collate_fn,
            loader.drop_last,
        )
        is_empty = True
        for whole in loader._index_sampler:  # noqa: SLF001
            indices = whole[:PART] if is_batched else whole
            try:
                fetcher.fetch(indices)
            except StopIteration:  # the end of a stream
                break
            is_empty = False
            yield len(indices) if isinstance(indices, list) else 1
        if is_empty:
            return


@contextmanager
def _opened() -> Iterator[Counter[int]]:
    """Count, by thread, the files that are opened to read.

    Python cannot remove an audit hook again. The process that is examined ends soon.
    """
    counts: Counter[int] = Counter()
    is_over = False

    def audit(event: str, args: tuple[object, ...]) -> None:
        if event == "open" and not is_over:
            flags = args[2]
            is_read = isinstance(flags, int) and flags & os.O_ACCMODE == os.O_RDONLY
            counts[threading.get_ident()] += is_read

    sys.addaudithook(audit)
    try:
        yield counts
    finally:
        is_over = True


class _Lines:
    """Where a thread passes its time: seconds by line of the program and innermost line."""

    def __init__(self) -> None:
        self._seconds: defaultdict[tuple[str, str], float] = defaultdict(float)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Look at this thread from another one, below the frame that asks."""
        frame, thread, is_over = sys._getframe(2), threading.get_ident(), threading.Event()  # noqa: SLF001
        switch_s = sys.getswitchinterval()
        looking = threading.Thread(target=self._look, args=(thread, frame, is_over), daemon=True)
        sys.setswitchinterval(SWITCH_S)
        looking.start()
        try:
            yield
        finally:
            is_over.set()
            looking.join()
            sys.setswitchinterval(switch_s)

    def longest(self) -> tuple[str, str]:
        """Return the program's line with most of the time, and the line in a library within it.

        The second is empty where most of the time is spent in the program's line itself.
        """
        by_line: defaultdict[str, float] = defaultdict(float)
        for (line, _), seconds in self._seconds.items():
            by_line[line] += seconds
        where = max(by_line, key=by_line.__getitem__, default="")
        inner = {line: s for (outer, line), s in self._seconds.items() if outer == where}
        within = max(inner, key=inner.__getitem__, default="")
        return where, within if inner.get(within, 0.0) > by_line[where] / 2 else ""

    def _look(self, thread: int, outermost: FrameType, is_over: threading.Event) -> None:
        last = perf_counter()
        while not is_over.wait(PERIOD_S):
            frame = sys._current_frames().get(thread)  # noqa: SLF001
            now = perf_counter()
            inside = takewhile(lambda f: f is not outermost, stack(frame))
            frames = [f for f in inside if not f.f_code.co_filename.startswith(OURS)]
            of_program = next((f for f in frames if is_programs(f.f_code)), None)
            inner = frames[0] if frames and frames[0] is not of_program else None
            self._seconds[_line(of_program), _line(inner)] += now - last
            last = now


def _line(frame: FrameType | None) -> str:
    return "" if frame is None else str(Place(frame.f_code.co_filename, frame.f_lineno))


@contextmanager
def _threads_of_a_worker(loader: DataLoader[Any]) -> Iterator[None]:
    """Compute with one thread, as torch does in workers, if the program's loader has some."""
    before = torch.get_num_threads()
    if loader.num_workers:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
