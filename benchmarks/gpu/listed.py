"""The programs that are searched, with the flags by which each tells the truth itself.

Published effects: S. Migacz, PyTorch Performance Tuning Guide, GTC 2021 (MNIST with 4 loader
workers instead of 1: 6.7 to 4.1 s an epoch; cudnn.benchmark on this very layer: 1,430 to 840 us),
and Lightning's fine-tuning of a ViT (bf16-mixed: 18 to 6 minutes).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

FOLDER = Path(__file__).parent / "programs"


@dataclass(frozen=True)
class Setting:
    """One change that a program can make by its own flags.

    Attributes:
        published: Ratio that others published for such a change; empty if none is known.
        counts: Whether autotune has to claim at least as much: it can change this in a running
            program, and the batch stays.
        builds_s: Seconds that it adds to a start: for compiled code, for cuDNN's plans.
    """

    name: str
    flags: tuple[str, ...]
    published: str = ""
    counts: bool = True
    builds_s: float = 0.0


@dataclass(frozen=True)
class TrainingProgram:
    """A script with its settings.

    Attributes:
        tiny: Flags for a rehearsal on two cores.
        script: Its file, without the ending; the name where it is empty.
        flags: With which it is always run.
        fills: Its memory is large beside what every process takes, so that figures of it compare.
    """

    name: str
    settings: tuple[Setting, ...]
    tiny: tuple[str, ...] = ()
    script: str = ""
    flags: tuple[str, ...] = ()
    fills: bool = False

    def line(self, *, rehearsal: bool) -> list[str]:
        """Return the script with its flags."""
        path = FOLDER / f"{self.script or self.name}.py"
        return [str(path), *self.flags, *(self.tiny if rehearsal else ())]


@dataclass(frozen=True)
class Printed:
    """What a program prints at its end; None where it prints nothing of the kind."""

    samples_per_s: float | None
    device: str | None
    peak_bytes: int | None

    @classmethod
    def read(cls, text: str) -> Printed:
        """Return what stands in the output of one run."""

        def last(pattern: str) -> str | None:
            return next(reversed(re.findall(rf"^{pattern}$", text, re.MULTILINE)), None)

        rate = last(r"([\d.]+) samples/s")
        peak = last(r"peak memory: (\d+) bytes reserved")
        return cls(
            None if rate is None else float(rate),
            last(r"device: (\S+)"),
            None if peak is None else int(peak),
        )


BF16 = Setting("bf16", ("--bf16",))
FUSED = Setting("fused AdamW", ("--fused",))

# In the order of worth
PROGRAMS = (
    TrainingProgram(
        "images",
        (
            Setting("4 workers", ("--workers", "4"), "1.6x"),
            Setting("pinned memory", ("--pin-memory",)),
        ),
        tiny=("--side", "96", "--crop", "64", "--batch-size", "16"),
    ),
    TrainingProgram(
        "vit",
        (Setting("bf16", ("--bf16",), "3x"), Setting("tf32", ("--tf32",)), FUSED),
        tiny=("--side", "64", "--depth", "2", "--width", "128", "--batch-size", "16"),
    ),
    TrainingProgram(
        "overlap",
        (
            Setting("pinned memory", ("--pin-memory",)),
            Setting("pinned, non-blocking", ("--pin-memory", "--non-blocking")),
        ),
        tiny=("--side", "64", "--batch-size", "8", "--tracked", "20000", "--workers", "1"),
    ),
    TrainingProgram(
        "conv",
        (
            Setting("channels_last", ("--channels-last",)),
            BF16,
            Setting("cudnn.benchmark", ("--cudnn-benchmark",), "1.7x", counts=False, builds_s=8.0),
        ),
        tiny=("--side", "24", "--channels", "16"),
    ),
    TrainingProgram(
        "fits",
        (
            Setting("batch x2", ("--times", "2"), counts=False),
            Setting("batch x16", ("--times", "16"), counts=False),
        ),
        tiny=("--layers", "4", "--side", "32"),
        script="conv",
        flags=("--layers", "24", "--fill", "0.12", "--workers", "0"),
        fills=True,
    ),
    TrainingProgram(
        "gpt",
        (
            BF16,
            FUSED,
            Setting("compiled", ("--compile", "default"), counts=False, builds_s=30.0),
            Setting(
                "reduce-overhead", ("--compile", "reduce-overhead"), counts=False, builds_s=30.0
            ),
        ),
        tiny=("--depth", "2", "--width", "64"),
    ),
)
