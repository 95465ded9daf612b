"""Makes pictures in the format of CIFAR-100, which torchvision reads in place of the real ones."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np

# Read by each Python process that has its folder on PYTHONPATH. Torchvision compares checksums
# with those of the real files, and would download them again.
HOOK = """\
import importlib.abc
import os
import sys


class Finder(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name == "torchvision.datasets.cifar":
            sys.meta_path.remove(self)
            import torchvision.datasets.utils as utils

            utils.check_integrity = lambda file, md5=None: os.path.isfile(file)
        return None


sys.meta_path.insert(0, Finder())
"""


def cifar(folder: Path) -> None:
    """Write 20,000 pictures to train on and 2,000 to test on, of 100 kinds."""
    draws, data = np.random.default_rng(0), folder / "data" / "cifar-100-python"
    for path in (data, folder / "made"):
        path.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", 20_000), ("test", 2_000)):
        images = draws.integers(0, 256, (count, 3072), dtype=np.uint8)
        kinds = [int(kind) for kind in draws.integers(0, 100, count)]
        (data / part).write_bytes(pickle.dumps({"data": images, "fine_labels": kinds}))
    names = {"fine_label_names": [f"kind{n}" for n in range(100)]}
    (data / "meta").write_bytes(pickle.dumps(names))
    (folder / "made" / "sitecustomize.py").write_text(HOOK, encoding="utf-8")
