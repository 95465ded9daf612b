"""Trains a YOLO of ultralytics, built from a yaml, on images of squares that it makes itself."""

import sys
from pathlib import Path

import numpy as np
from PIL import Image
from ultralytics import YOLO

MODEL = """
nc: 1
scales: {n: [0.33, 0.25, 1024]}
backbone:
  - [-1, 1, Conv, [32, 3, 2]]
  - [-1, 1, Conv, [64, 3, 2]]
  - [-1, 1, C2f, [64, True]]
  - [-1, 1, Conv, [128, 3, 2]]
head:
  - [[2, 3], 1, Detect, [nc]]
"""


def make_data(folder, count=256):
    rng = np.random.default_rng(0)
    for part in ("images", "labels"):
        (folder / part).mkdir(parents=True, exist_ok=True)
    for number in range(count):
        image = rng.integers(0, 80, (64, 64, 3), dtype=np.uint8)
        x, y = rng.integers(0, 44, 2)
        image[y : y + 20, x : x + 20] = 220
        Image.fromarray(image).save(folder / "images" / f"{number:03d}.png")
        box = f"0 {(x + 10) / 64} {(y + 10) / 64} {20 / 64} {20 / 64}\n"
        (folder / "labels" / f"{number:03d}.txt").write_text(box)
    (folder / "model.yaml").write_text(MODEL)
    (folder / "data.yaml").write_text(
        f"path: {folder.resolve()}\ntrain: images\nval: images\nnames: {{0: square}}\n"
    )


def main():
    epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    folder = Path("squares")
    if not (folder / "data.yaml").is_file():
        make_data(folder)
    YOLO(folder / "model.yaml").train(
        data=str(folder / "data.yaml"),
        epochs=epochs,
        imgsz=64,
        batch=8,
        workers=1,
        device="cpu",
        optimizer="SGD",
        amp=False,
        val=False,
        plots=False,
        save=False,
        project="runs",
    )


if __name__ == "__main__":
    main()
