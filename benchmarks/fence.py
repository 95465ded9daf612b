"""What reading costs behind the fence: the same work outside and inside, in turn.

    python -m benchmarks.fence [--pairs 12]

Two jobs, on warm files: 100,000 small files are listed, asked for their status, opened and read;
the training images of examples/photos_resnet are decoded and augmented as its loader does. Each
pair runs a job once outside and once inside, in an order that changes; a job times itself, without
the start of its process.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from autotune.program.fence_options import STRONGEST
from autotune.program.program import LaunchPlan
from autotune.rig.fence import Fence, raise_fence
from benchmarks.record import as_figures, median_ratio, save

FILES, PER_FOLDER = 100_000, 1_000
EXAMPLE = Path(__file__).parent.parent / "examples" / "photos_resnet"
SMALL_FILES = """
import os, time
began = time.perf_counter()
read = 0
for folder, folders, names in os.walk("small"):
    for name in names:
        path = os.path.join(folder, name)
        os.stat(path)
        with open(path, "rb") as file:
            read += len(file.read())
print(time.perf_counter() - began)
assert read > 0
"""
IMAGES = f"""
import sys, time
from pathlib import Path
sys.path.insert(0, {str(EXAMPLE)!r})
import torch
import train
torch.set_num_threads(1)
images, _ = train.build_datasets(Path("photos"))
began = time.perf_counter()
for number in range(len(images)):
    images[number]
print(time.perf_counter() - began)
"""
PREPARE_IMAGES = f"""
import sys
from pathlib import Path
sys.path.insert(0, {str(EXAMPLE)!r})
import train
train.prepare_data(Path("photos"))
"""


def main() -> None:
    """Run the pairs and keep the ratios."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--pairs", type=int, default=12)
    pairs: int = parser.parse_args().pairs
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        _prepare(place)
        figures: dict[str, object] = {}
        with raise_fence(STRONGEST, place) as fence:
            print(fence.sentence)
            for job, code in (("100,000 small files", SMALL_FILES), ("photos_resnet", IMAGES)):
                _seconds(code, place, None)  # the files are warm from here on
                ratios = [_ratio(code, place, fence, inside_first=n % 2 == 1) for n in range(pairs)]
                found = median_ratio(ratios)
                figures[job] = {"inside / outside": as_figures(found), "pairs": pairs}
                low, high = found.low, found.high
                print(
                    f"{job}: inside takes {found.estimate:.3f} [{low:.3f}, {high:.3f}] of outside"
                )
    print(save("fence", figures))


def _prepare(place: Path) -> None:
    for number in range(FILES // PER_FOLDER):
        folder = place / "small" / f"{number:03d}"
        folder.mkdir(parents=True)
        for inner in range(PER_FOLDER):
            (folder / f"{inner:04d}").write_bytes(b"x" * 1000)
    subprocess.run([sys.executable, "-c", PREPARE_IMAGES], cwd=place, check=True)


def _ratio(code: str, place: Path, fence: Fence, *, inside_first: bool) -> float:
    if inside_first:
        inside = _seconds(code, place, fence)
        return inside / _seconds(code, place, None)
    outside = _seconds(code, place, None)
    return _seconds(code, place, fence) / outside


def _seconds(code: str, place: Path, fence: Fence | None) -> float:
    plan = LaunchPlan((sys.executable, "-c", code), str(place))
    view = fence.view() if fence is not None else None
    if view is not None:
        plan = view.fenced(plan, [])
    done = subprocess.run(plan.argv, cwd=place, capture_output=True, text=True, check=True)
    if view is not None:
        view.close()
    return float(done.stdout)


if __name__ == "__main__":
    main()
