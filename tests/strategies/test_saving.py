"""Ranks beside the first read a checkpoint when the first one has it where they look."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import torch
from torch.distributed import HashStore  # type: ignore[attr-defined]

from autotune.inside.group import Group
from autotune.inside.seams.silence import SilenceSeam, TellSavesSeam


def test_a_checkpoint_that_is_renamed_and_copied_is_waited_for_at_each_place(
    tmp_path: Path,
) -> None:
    store = HashStore()
    part, best, copy = (tmp_path / f"{name}.pt" for name in ("part", "best", "copy"))
    for stale in (best, copy):
        stale.write_text("of the epoch before")
    quiet = SilenceSeam(tmp_path / "shadow", (), Group(1, 1, 2, 2, store))
    quiet.install()
    torch.save({}, part)
    os.replace(part, best)  # noqa: PTH105 - as scripts do
    shutil.copyfile(best, copy)
    quiet.remove()
    assert best.read_text() == copy.read_text() == "of the epoch before", "it writes nothing"

    reader = threading.Thread(target=quiet._wait_for, args=(str(copy),))
    reader.start()
    first = TellSavesSeam(Group(0, 0, 2, 2, store))
    first.install()
    torch.save({}, part)
    os.replace(part, best)  # noqa: PTH105
    reader.join(0.2)
    assert reader.is_alive(), "the copy is not there yet"
    shutil.copyfile(best, copy)
    first.remove()
    reader.join(5.0)
    assert not reader.is_alive()
