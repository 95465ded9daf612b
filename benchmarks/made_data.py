"""Makes the data of the public scripts in ``scripts.toml``, where these would download it.

    python -m benchmarks.made_data PROGRAMS

*PROGRAMS* has the checkouts; those that are missing are passed over. All data is noise.
"""

from __future__ import annotations

import argparse
import gzip
import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

END = "<eos>"
# All episodes have one length, so that their number tells the work
ENVIRONMENT = """import types
import numpy as np

class Environment:
    spec = types.SimpleNamespace(reward_threshold=float("inf"))

    def reset(self, seed=None):
        self.draws = self.draws if seed is None else np.random.default_rng(seed)
        self.left = 100
        return self.draws.normal(size=4), {}

    def step(self, action):
        self.left -= 1
        return self.draws.normal(size=4), self.draws.random(), self.left == 0, False, {}

def make(name, render_mode=None):
    return Environment()
"""

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


def digits(folder: Path) -> None:
    """Write pictures of noise in MNIST's format, the same number as MNIST has."""
    draws, raw = np.random.default_rng(0), folder / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", 60_000), ("t10k", 10_000)):
        images = draws.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        kinds = draws.integers(0, 10, count, dtype=np.uint8)
        for name, values in ((f"{part}-images-idx3", images), (f"{part}-labels-idx1", kinds)):
            head = np.array([0x800 + values.ndim, *values.shape], dtype=">i4")
            (raw / f"{name}-ubyte").write_bytes(head.tobytes() + values.tobytes())


def words(file: Path, count: int, different: int) -> None:
    """Write a text of words in lines of 20; few of them are frequent, as in English."""
    file.parent.mkdir(parents=True, exist_ok=True)
    shares = 1 / np.arange(1, different + 1)
    drawn = np.random.default_rng(0).choice(different, count, p=shares / shares.sum())
    lines = (" ".join(f"w{n}" for n in drawn[i : i + 20]) for i in range(0, count, 20))
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def language_model(folder: Path) -> None:
    """Write a small GPT-2 whose tokens are words, and texts for it."""
    import tokenizers
    import transformers

    kinds = {END: 0, **{f"w{n}": n + 1 for n in range(5000)}}
    plain = tokenizers.Tokenizer(tokenizers.models.WordLevel(kinds))
    plain.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    wrapped: Any = transformers.PreTrainedTokenizerFast
    wrapped(tokenizer_object=plain, eos_token=END).save_pretrained(folder / "model")
    sizes: dict[str, Any] = {"n_positions": 256, "n_embd": 128, "n_layer": 4, "n_head": 4}
    config = transformers.GPT2Config(vocab_size=len(kinds), **sizes, bos_token_id=0, eos_token_id=0)
    transformers.GPT2LMHeadModel(config).save_pretrained(folder / "model")
    words(folder / "words.txt", 400_000, 5000)
    lines = (folder / "words.txt").read_text(encoding="utf-8").splitlines()
    texts = (json.dumps({"text": " ".join(lines[i : i + 5])}) for i in range(0, len(lines), 5))
    (folder / "data").mkdir(exist_ok=True)
    (folder / "data" / "train.jsonl").write_text("\n".join(texts) + "\n", encoding="utf-8")


def cifar(folder: Path) -> None:
    """Write 20,000 pictures to train on and 2,000 to test on, of 100 kinds."""
    draws, data = np.random.default_rng(0), folder / "data" / "cifar-100-python"
    data.mkdir(parents=True, exist_ok=True)
    (folder / "made").mkdir(exist_ok=True)
    for part, count in (("train", 20_000), ("test", 2_000)):
        images = draws.integers(0, 256, (count, 3072), dtype=np.uint8)
        kinds = [int(kind) for kind in draws.integers(0, 100, count)]
        (data / part).write_bytes(pickle.dumps({"data": images, "fine_labels": kinds}))
    names = {"fine_label_names": [f"kind{n}" for n in range(100)]}
    (data / "meta").write_bytes(pickle.dumps(names))
    (folder / "made" / "sitecustomize.py").write_text(HOOK, encoding="utf-8")


def corpus(folder: Path) -> None:
    """Write a corpus of three parts, about half of WikiText-2, with the words of all of it."""
    for part, count in (("train", 1_000_000), ("valid", 50_000), ("test", 50_000)):
        words(folder / f"{part}.txt", count, 33_000)


def characters(folder: Path) -> None:
    """Write what nanoGPT's ``prepare.py`` makes of a text with 65 different characters."""
    draws = np.random.default_rng(0)
    for part, count in (("train", 1_003_854), ("val", 111_540)):
        draws.integers(0, 65, count).astype(np.uint16).tofile(folder / f"{part}.bin")
    forth = {n: chr(48 + n) for n in range(65)}
    meta = {"vocab_size": 65, "itos": forth, "stoi": {c: n for n, c in forth.items()}}
    (folder / "meta.pkl").write_bytes(pickle.dumps(meta))


def compressed(file: Path) -> None:
    """Write 95 MB of text that repeats itself, so that the file is small."""
    piece = np.random.default_rng(0).integers(32, 127, 16_384).astype(np.uint8).tobytes()
    with gzip.open(file, "wb") as out:
        out.write(piece * (95_000_000 // len(piece) + 1))


def pictures(folder: Path, count: int, size: tuple[int, int], name: str = "{0}.png") -> None:
    """Write PNG files in colour; masks, if the name says so."""
    draws, is_mask = np.random.default_rng(0), "mask" in name
    for number in range(count):
        file = folder / name.format(number, number % 10)
        file.parent.mkdir(parents=True, exist_ok=True)
        shape = (size[1] // 8, size[0] // 8) if is_mask else (size[1] // 8, size[0] // 8, 3)
        drawn = draws.integers(0, 256, shape, dtype=np.uint8)
        image = Image.fromarray((drawn > 127).astype(np.uint8) * 255 if is_mask else drawn)
        image.resize(size, Image.Resampling.NEAREST if is_mask else None).save(file)


def environment(folder: Path) -> None:
    """Write a module that stands in for gymnasium."""
    folder.mkdir(exist_ok=True)
    (folder / "gymnasium.py").write_text(ENVIRONMENT, encoding="utf-8")


MADE: tuple[tuple[str, Callable[..., None], tuple[Any, ...]], ...] = (
    ("nanoGPT/data/shakespeare_char", characters, ()),
    ("PyTorch-GAN/data/mnist", digits, ()),
    ("examples/data", digits, ()),
    ("examples/dcgan/made", pictures, (6000, (96, 96), "{1}/{0}.png")),
    ("examples/made", environment, ()),
    ("examples/word_language_model/data/made", corpus, ()),
    ("Pytorch-UNet/data/imgs", pictures, (400, (256, 192))),
    ("Pytorch-UNet/data/masks", pictures, (400, (256, 192), "{0}_mask.png")),
    ("pytorch-image-models/made/train", pictures, (4000, (96, 96), "{1}/{0}.png")),
    ("pytorch-image-models/made/validation", pictures, (400, (96, 96), "{1}/{0}.png")),
    ("pytorch-lightning/examples/pytorch/basics/data/wikitext-2.txt", words, (300_000, 5000)),
    ("x-transformers/data/enwik8.gz", compressed, ()),
    ("pytorch-cifar100", cifar, ()),
    ("trl/made", language_model, ()),
)

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("programs", type=Path)
    programs = parser.parse_args().programs
    for path, make, given in MADE:
        if (programs / path.partition("/")[0]).is_dir():
            make(programs / path, *given)
