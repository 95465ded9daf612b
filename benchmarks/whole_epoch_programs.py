"""The six programs of ``benchmarks.whole_epoch``: three of autotune's own, three public scripts.

The public ones were named, with URL and commit, before any of them was run. A checksum keeps them
what they were. They are copied out of their checkouts, so that these stay clean.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

OWN = Path(__file__).parent / "whole_epochs"
MANY = 100_000  # epochs that a search never reaches
EXAMPLES = "https://github.com/pytorch/examples"


@dataclass(frozen=True)
class Source:
    """Where a public script is from.

    Attributes:
        url: The repository, whose last part is the name of its checkout.
        commit: The commit that is checked out.
    """

    url: str
    commit: str

    @property
    def how(self) -> str:
        """The commands that check it out."""
        name = self.url.rsplit("/", 1)[-1]
        return f"git clone {self.url} && git -C {name} checkout {self.commit}"


MAKEMORE = Source(
    "https://github.com/karpathy/makemore", "988aa59e4d8fefa526d06f3b453ad116258398d4"
)
PYTORCH = Source(EXAMPLES, "77f55b912142e11fcfdf5b530231fb9c52f181e8")
LIGHTNING = Source(
    "https://github.com/Lightning-AI/pytorch-lightning", "7f0c3436cd3f6ad3753125672024fc415cbcb414"
)


@dataclass(frozen=True)
class Taken:
    """A file of a public repository.

    Attributes:
        source: The repository.
        path: Its place there.
        sha256: The checksum of its content.
    """

    source: Source
    path: str
    sha256: str

    def copy(self, checkouts: Path, target: Path) -> None:
        """Copy it out of its checkout.

        Raises:
            SystemExit: It is missing, or another version.
        """
        file = checkouts / self.source.url.rsplit("/", 1)[-1] / self.path
        if not file.is_file():
            raise SystemExit(f"{file} is missing. In {checkouts}: {self.source.how}")
        found = hashlib.sha256(file.read_bytes()).hexdigest()
        if found != self.sha256:
            raise SystemExit(f"{file} is another version. In {checkouts}: {self.source.how}")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(file, target)


@dataclass(frozen=True)
class Program:
    """A program whose epochs, or whose whole run, are foretold and timed.

    Attributes:
        name: As users of the benchmark write it.
        stands_for: Which kind of program it is.
        script: Its file, relative to the folder in which it is laid out.
        arguments: What it is given; ``{}`` stands for the number of epochs or steps.
        run: This number where whole runs are timed; None times epochs.
        marker: A regular expression whose group is the number of the epoch, in what it prints at
            the beginning or the end of each.
        files: Public files by their places in the folder.
        makes: Makes its data in the folder.
    """

    name: str
    stands_for: str
    script: str
    arguments: tuple[str, ...] = ()
    run: int | None = None
    marker: str = r"epoch (\d+)"
    files: Mapping[str, Taken] = field(default_factory=dict)
    makes: Callable[[Path], None] = lambda _: None

    def lay_out(self, folder: Path, checkouts: Path) -> Path:
        """Copy the program into a folder, with its data, and return the script.

        Raises:
            SystemExit: A public file is missing, or another version.
        """
        script = folder / self.script
        script.parent.mkdir(parents=True, exist_ok=True)
        if not self.files:
            shutil.copy(OWN / self.script, script)
        for place, taken in self.files.items():
            taken.copy(checkouts, folder / place)
        self.makes(folder)
        return script

    def given(self, number: int) -> list[str]:
        """Return its arguments for a number of epochs or steps."""
        return [argument.format(number) for argument in self.arguments]

    @property
    def searched_for(self) -> int:
        """The number of epochs or steps with which it is searched."""
        return MANY if self.run is None else self.run


def digits(folder: Path) -> None:
    """Write pictures of noise in MNIST's format: 8,000 to train on, 2,000 to test on."""
    draws, raw = np.random.default_rng(0), folder / "data" / "MNIST" / "raw"
    raw.mkdir(parents=True, exist_ok=True)
    for part, count in (("train", 8000), ("t10k", 2000)):
        pictures = draws.integers(0, 256, (count, 28, 28), dtype=np.uint8)
        kinds = draws.integers(0, 10, count, dtype=np.uint8)
        for name, values in ((f"{part}-images-idx3", pictures), (f"{part}-labels-idx1", kinds)):
            head = np.array([0x800 + values.ndim, *values.shape], dtype=">i4")
            (raw / f"{name}-ubyte").write_bytes(head.tobytes() + values.tobytes())


def words(folder: Path) -> None:
    """Write a text of 500 words drawn at random, where the script would download one.

    It holds the 4,000 blocks of 35 words that the script evaluates and tests on, and 400 to train
    on. With the real text, an epoch takes many minutes on two cores.
    """
    draws, text = np.random.default_rng(0), folder / "data" / "wikitext-2.txt"
    text.parent.mkdir(parents=True, exist_ok=True)
    lines = (" ".join(f"w{n}" for n in draws.integers(0, 500, 34)) for _ in range(4402))
    text.write_text("\n".join(lines) + "\n", encoding="utf-8")


PROGRAMS = (
    Program("short", "short epochs with many workers", "short.py", ("{}",)),
    Program("evaluates", "evaluation takes half of the epoch", "evaluates.py", ("{}",)),
    Program("checkpoints", "a large checkpoint after each epoch", "checkpoints.py", ("{}",)),
    Program(
        "mnist",
        "one epoch only",
        "mnist/main.py",
        ("--epochs", "{}"),
        run=1,
        files={
            "mnist/main.py": Taken(
                PYTORCH,
                "mnist/main.py",
                "30a3359d1911d2d859dd090ce20be7ed132a33f508dc389f40366010b3e9ecc8",
            )
        },
        makes=digits,
    ),
    Program(
        "makemore",
        "bounded by steps",
        "makemore.py",
        ("--max-steps", "{}", "--n-layer", "2"),
        run=1001,
        files={
            "makemore.py": Taken(
                MAKEMORE,
                "makemore.py",
                "49b281f40d2c4897737cb90f21f55d4cbbe7d10329212caab72a9054ba17be96",
            ),
            "names.txt": Taken(
                MAKEMORE,
                "names.txt",
                "0a30b5557f192f32ab962680889aac5f6fda0f4cecf40a6d0b5694f58ea8cc4d",
            ),
        },
    ),
    Program(
        "lightning",
        "the trainer of a library",
        "transformer.py",
        marker=r"Epoch (\d+)/",
        files={
            "transformer.py": Taken(
                LIGHTNING,
                "examples/pytorch/basics/transformer.py",
                "417e7ceb2e0611d7656ea6ea72927c18a04dcf4fda824e3baca2645a9e464367",
            ),
        },
        makes=words,
    ),
)
