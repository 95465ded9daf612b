"""How many epochs or steps a program trains is read from its code, its flags or its trainer."""

from __future__ import annotations

import linecache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.inside.seams.trainers import TrainersSeam
from autotune.program.run_length import RunLength
from tests.inside.test_bounds import BY_STEPS, STEP
from tests.watching import profile_of

KNOWN = {
    "for epoch in range(10):\n    for batch in loader:\n        train_step(batch)": (
        10,
        "for epoch in range(10)",
    ),
    "n = 9\nfor epoch in range(1, n + 1):\n    for batch in loader:\n        train_step(batch)": (
        9,
        "for epoch in range(1, n + 1)",
    ),
    """
parser = argparse.ArgumentParser()
parser.add_argument("--rounds", type=int, default=7)
args = parser.parse_args()
def train_epoch():
    for batch in loader:
        train_step(batch)
def main(start=2):
    for epoch in range(start, args.rounds):
        train_epoch()
main()
""": (5, "for epoch in range(start, args.rounds)"),
    """
parser = argparse.ArgumentParser()
parser.add_argument("--num-epochs", type=int, default=4)
args = parser.parse_args()
done = 0
while done < args.num_epochs:
    for batch in loader:
        train_step(batch)
    done += 1
""": (4, "--num-epochs 4"),
    """
for epoch in range(5):
    for i, batch in enumerate(loader):
        train_step(batch)
        if i >= 100:
            break
""": (5, "for epoch in range(5)"),
    """
for epoch in range(6):
    step = 0
    for batch in loader:
        train_step(batch)
        step += 1
        if step == 100:
            break
""": (6, "for epoch in range(6)"),
    """
for epoch in range(8):
    for phase in ["train", "val"]:
        for batch in loader:
            with torch.set_grad_enabled(phase == "train"):
                train_step(batch)
""": (8, "for epoch in range(8)"),
    """
def run(phase):
    for batch in loader:
        train_step(batch)
def main():
    for epoch in range(3):
        for phase in ("train", "val"):
            run(phase)
main()
""": (3, "for epoch in range(3)"),
    """
def one_epoch():
    for phase in ["valid", "training"]:
        for batch in loader:
            train_step(batch)
        if phase == "training":
            return
for epoch in range(4):
    one_epoch()
""": (4, "for epoch in range(4)"),
}
# By where the number of steps stands
STEPS = {
    "for step in range(200)": 200,
    "while steps < max_steps": 200,
    "if step > 150: break": 150,
    "if done == most: return": 200,
    "while done < 200": 200,
    "for (_, batch) in zip(range(99), cycle(loader))": 99,
    "if trainer.global_step >= args.max_steps: break": 24,
}
UNKNOWN = (
    """
for epoch in range(50):
    for batch in loader:
        train_step(batch)
    if epoch == 3:
        break
""",
    """
for fold in range(5):
    for epoch in range(3):
        for batch in loader:
            train_step(batch)
""",
    # several data sets, or several trainings
    """
for epoch in range(3):
    for name in ["source", "target"]:
        for batch in loader:
            train_step(batch if name == "source" else batch)
""",
    """
for epoch in range(3):
    for phase in ("train_d", "train_g", "val"):
        for batch in loader:
            train_step(batch)
""",
    """
for epoch in range(3):
    for phase in ["train"]:
        for batch in loader:
            train_step(batch)
""",
    """
def main():
    for epoch in range(3):
        for phase in ["train", "val"]:
            for batch in loader:
                train_step(batch)
            if phase == "val" and epoch > 1:
                return
main()
""",
    "for epoch in count():\n    for batch in loader:\n        train_step(batch)",
    "for batch in cycle(loader):\n    train_step(batch)",
    # rounds of several batches are neither epochs nor batches
    """
batches = cycle(loader)
for step in range(50):
    for micro in range(4):
        train_step(next(batches))
""",
)


@pytest.mark.parametrize("loop", KNOWN)
def test_the_loop_around_the_batches_tells_the_epochs(tmp_path: Path, loop: str) -> None:
    epochs, said = KNOWN[loop]
    linecache.clearcache()
    found = profile_of(tmp_path, STEP + loop).length
    assert found.epochs == epochs
    assert found.batches == (100 if "break" in loop else None)
    assert found.where.endswith(said)


@pytest.mark.parametrize("loop", BY_STEPS)  # a loop over them would be one around the program
def test_a_loop_that_counts_its_steps_tells_their_number(tmp_path: Path, loop: str) -> None:
    said = BY_STEPS[loop]
    linecache.clearcache()
    found = profile_of(tmp_path, STEP + loop).length
    assert found.steps == STEPS.get(said)
    if found.steps is None:  # islice() in a loop over epochs
        assert (found.epochs, said) == (9, "for batch in islice(loader, 10)")
        assert found.batches == 10
    else:
        assert found.where.endswith(said)
        assert str(found) == f"{found.steps:,.0f} steps ({found.where})"


@pytest.mark.parametrize("loop", UNKNOWN)
def test_a_loop_without_a_known_end_tells_none(tmp_path: Path, loop: str) -> None:
    linecache.clearcache()
    found = profile_of(tmp_path, STEP + loop).length
    assert (found.epochs, found.steps, found.batches) == (None, None, None)


@pytest.mark.parametrize(
    ("loop", "why"),
    [
        (UNKNOWN[0], "the program may leave its loop over the epochs early"),
        (UNKNOWN[1], "another loop surrounds that over the epochs"),
    ],
)
def test_a_flag_for_the_epochs_says_nothing_where_the_code_says_otherwise(
    tmp_path: Path, loop: str, why: str
) -> None:
    """The flag is that of one fold, or the most that early stopping allows."""
    linecache.clearcache()
    flag = """
import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=3)
args = parser.parse_args()
"""
    found = profile_of(tmp_path, STEP + flag + loop).length
    assert found == RunLength(unknown=why)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"max_epochs": 5}, RunLength(5.0, "max_epochs=5 of its Trainer")),
        ({"max_epochs": -1}, RunLength(None, "max_epochs=-1 of its Trainer")),
        (
            {"max_epochs": -1, "max_steps": 70},
            RunLength(None, "max_steps=70 of its Trainer", 70.0),
        ),
        ({"max_epochs": 5, "max_steps": 70}, RunLength(None, "max_steps=70 of its Trainer")),
    ],
)
def test_lightnings_trainer_tells_epochs_or_steps(
    arguments: dict[str, Any], expected: RunLength
) -> None:
    class Trainer(SimpleNamespace):
        __hash__ = object.__hash__  # type: ignore[assignment]

    seam = TrainersSeam(endless=True)
    trainer = Trainer(**{"accumulate_grad_batches": 1, "max_steps": -1, **arguments})
    seam._begins(trainer, "lightning")
    assert seam.length == expected
