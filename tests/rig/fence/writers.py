"""What programs do to files: each function is one kind of program, and checks what it sees.

``python writers.py KIND FOLDER REPORT`` runs them all behind a fence of this kind that the process
is in, as a rig would, and reports the errors of those that could not write.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import numpy
import torch

from autotune.files.scratch import PREFIX
from autotune.inside.hubs.saving import SaveHub
from autotune.inside.seams.fencing import OverlaySeam
from autotune.inside.seams.guard import GuardSeam, Shadows
from autotune.program.fence_options import FenceKind
from autotune.rig.fence.plan import Mount, read_mounts

ELSEWHERE = Path("../elsewhere")  # not the working directory, nor below it


def prepare(folder: Path) -> None:
    for name in ("best.pt", "last.pt", "ckpt_1.pt", "ckpt_2.pt", "log.txt", "data.bin", "a.db"):
        (folder / name).write_bytes(name.encode() * 100)
    (folder / "a.db").unlink()
    with sqlite3.connect(folder / "a.db") as base:
        base.execute("create table steps (loss real)")
    for name in ("out/run_1/model.pt", "out/run_2/model.pt", "checkpoints/epoch_1/weights.bin"):
        (folder / name).parent.mkdir(parents=True)
        (folder / name).write_text(name)
    (folder / "latest").symlink_to("out/run_2")
    (folder / "hard").hardlink_to(folder / "log.txt")
    (folder / ELSEWHERE).mkdir(exist_ok=True)
    (folder / ELSEWHERE / "cache.npy").write_bytes(b"cached")


def saves() -> None:
    """torch.save over an old file and to a new one."""
    torch.save({"step": 1}, "best.pt")
    torch.save({"step": 2}, Path("new.pt"))
    assert torch.load("best.pt")["step"] == 1
    assert os.path.getsize("new.pt") > 100
    shutil.copy("new.pt", "backup.pt")


def rotates() -> None:
    """ckpt_2 → ckpt_3, ckpt_1 → ckpt_2, a new ckpt_1; the last one becomes the best."""
    for number in (2, 1):
        os.rename(f"ckpt_{number}.pt", f"ckpt_{number + 1}.pt")
    torch.save(0, "ckpt_1.pt")
    os.replace("last.pt", "best.pt")
    assert not os.path.exists("last.pt")
    assert Path("ckpt_3.pt").read_bytes().startswith(b"ckpt_2.pt")


def rotates_folders() -> None:
    """Folders that were there before are renamed, and one is removed."""
    Path("out/run_2").rename("out/run_3")
    os.rename("out/run_1", "out/run_2")
    os.rename("checkpoints", "checkpoints.old")
    shutil.rmtree("checkpoints.old")
    assert Path("out/run_3/model.pt").read_text() == "out/run_2/model.pt"
    assert sorted(os.listdir("out")) == ["run_2", "run_3"]


def writes_a_data_base() -> None:
    """C code: sqlite."""
    with sqlite3.connect("a.db") as base:
        base.execute("insert into steps values (0.5)")


def writes_tensorboard() -> None:
    """Event files, from a thread."""
    from torch.utils.tensorboard import SummaryWriter

    with SummaryWriter("runs/first") as writer:
        writer.add_scalar("loss", 0.5, 1)
    assert any(name.startswith("events") for name in os.listdir("runs/first"))


def writes_safetensors() -> None:
    """Rust code."""
    from safetensors.torch import save_file

    save_file({"w": torch.zeros(2)}, "model.safetensors")


def starts_programs() -> None:
    """A shell writes, moves and removes."""
    subprocess.run(["sh", "-c", "echo x > sh.txt && mv log.txt old.txt && rm best.pt"], check=True)


def starts_processes() -> None:
    worker = multiprocessing.get_context("fork").Process(target=Path("f.txt").write_text, args="x")
    worker.start()
    worker.join()
    assert worker.exitcode == 0
    assert Path("f.txt").exists()


def writes_elsewhere() -> None:
    """Home, data, temporary folders by their names."""
    (ELSEWHERE / "cache.npy").write_bytes(b"new")
    Path.home().joinpath("model.pt").write_bytes(b"x")
    for place in ("/tmp", "/var/tmp"):
        Path(place, f"autotune-test-{os.getppid()}.pt").write_bytes(b"x")


def maps_memory() -> None:
    data = numpy.memmap("data.bin", dtype="u1", mode="r+")
    data[:10] = 0
    data.flush()
    assert Path("data.bin").read_bytes()[:10] == bytes(10)


def links() -> None:
    """A link to the latest, a hard link as a backup."""
    torch.save(1, "model_1.pt")
    os.symlink("model_1.pt", "newest.pt")
    os.remove("latest")
    os.symlink("out/run_1", "latest")
    os.link("best.pt", "kept.pt")
    assert torch.load("newest.pt") == 1
    assert Path("latest/model.pt").read_text() == "out/run_1/model.pt"
    with open("hard", "a") as file:
        file.write("x")


def shares_memory() -> None:
    """Leaves a segment behind."""
    torch.zeros(1000).share_memory_()
    Path(f"/dev/shm/autotune-test-{os.getppid()}").write_bytes(b"x")


WRITERS: tuple[Callable[[], None], ...] = (
    saves, rotates, rotates_folders, writes_a_data_base, writes_tensorboard, writes_safetensors,
    starts_programs, starts_processes, writes_elsewhere, maps_memory, links, shares_memory,
)  # fmt: skip
# Their C code, or another process, writes: the guard does not see it, and Landlock denies it.
UNSEEN = {"writes_a_data_base", "writes_safetensors", "starts_programs"}


def is_real(mount: Mount) -> bool:
    """It can be reached, is no overlay, and no folder that the fence made."""
    is_made = mount.file_system == "overlay" or f"/{PREFIX}" in mount.root
    return not is_made and os.path.exists(mount.path)


def main(kind: str, folder: str, report: str, shadow: str) -> None:
    """Run them all, each in a folder of its own."""
    fence = FenceKind(kind)
    report_file = open(report, "w")  # noqa: SIM115 - while it leads to the real one
    seam = (
        OverlaySeam()
        if fence is FenceKind.OVERLAY
        else GuardSeam(Shadows(Path(shadow), [Path(tempfile.gettempdir())]))
    )
    mounts = [m for m in read_mounts(Path("/proc/self/mountinfo").read_text()) if m.is_writable]
    writable = [m.path for m in mounts if m.holds_user_files and is_real(m)]
    shared = [p.read_text() for p in Path("/dev/shm").glob("autotune-data-*/*")]
    if isinstance(seam, GuardSeam):
        SaveHub().join(seam)
    seam.install()
    errors = {}
    for writer in WRITERS:
        if fence is FenceKind.GUARD and writer.__name__ in UNSEEN:
            continue  # what the guard alone does not cover is really written
        os.chdir(Path(folder, writer.__name__, "home"))
        try:
            writer()
        except Exception as error:  # noqa: BLE001 - told to the test
            errors[writer.__name__] = f"{type(error).__name__}: {error}"
    json.dump({"errors": errors, "writable": writable, "shared": shared}, report_file)
    report_file.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
