from types import SimpleNamespace
from typing import Any

import pytest

from autotune.inside.seams.trainers import TrainersSeam
from autotune.program.flags import Flag
from autotune.program.profile import RunLength, told_by


def test_a_flag_tells_the_epochs_or_the_steps_and_nothing_else_does() -> None:
    steps, epochs = Flag("--max-steps", value=200), Flag("--num_epochs", value="30")
    assert told_by([epochs, steps]) == RunLength(where="--max-steps 200", steps=200)
    assert told_by([epochs]) == RunLength(30, "--num_epochs 30")
    assert str(told_by([epochs])) == "30 epochs (--num_epochs 30)"
    assert told_by([epochs]).bounded_by_steps == ""
    # none given, as many as the data have, and the steps of a roll-out
    others = [Flag("--epochs"), Flag("--max_steps", value=-1), Flag("--n-steps", value=128)]
    assert told_by(others) == RunLength()


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ({"max_epochs": 5}, RunLength(5.0, "max_epochs=5 of its Trainer")),
        ({"max_epochs": -1}, RunLength(None, "max_epochs=-1 of its Trainer")),
        (
            {"max_epochs": -1, "max_steps": 70},
            RunLength(None, "max_steps=70 of its Trainer", 70.0),
        ),
        # whichever ends first
        ({"max_epochs": 5, "max_steps": 70}, RunLength(None, "max_steps=70 of its Trainer")),
    ],
)
def test_a_trainer_tells_epochs_or_steps(arguments: dict[str, Any], expected: RunLength) -> None:
    class Trainer(SimpleNamespace):
        __hash__ = object.__hash__  # type: ignore[assignment]

    seam = TrainersSeam(endless=True)
    trainer = Trainer(**{"accumulate_grad_batches": 1, "max_steps": -1, **arguments})
    seam._begins(trainer, "lightning")
    assert seam.length == expected
