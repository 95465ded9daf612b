"""Scripts that leave the loop to Lightning's or Hugging Face's Trainer: the real libraries."""

import re
from pathlib import Path

import pytest

from autotune.measurement.turn import PlannedTurn, Taken
from autotune.program.config import KnobValue
from tests.made import changed
from tests.rigging import PROGRAMS, OpenRig, applied_with, never, open_rig, run_command, write_best

pytestmark = pytest.mark.usefixtures("warm_starts")

# Script, its library, samples in a batch, steps of the whole training with the batch and the
# accumulation doubled: 10 in each epoch of 40 as written; 13, the last of half a group, of 50.
CASES = {
    "lightning": ("lightning_trainer.py", "lightning", 16, 20),
    "transformers": ("hf_trainer.py", "transformers", 8, 26),
}


def arguments(name: str, directory: Path) -> list[str]:
    return [str(directory / "out")] if name == "transformers" else []


def samples_per_step(opened: OpenRig, **changes: KnobValue) -> float:
    """Return the samples of a step that comes after the switch: the loop may be a batch ahead."""
    applied = applied_with(opened.base, **changes)
    taken = opened.rig.take_turns([applied], [PlannedTurn(0, 4)], never, 60.0)
    assert isinstance(taken, Taken), taken
    return taken.turns[0].samples[-1]


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_knobs_reach_the_loop_of_a_trainer_and_a_training_ends_after_the_steps_of_its_config(
    name: str, tmp_path: Path
) -> None:
    script, library, batch, steps = CASES[name]
    with open_rig(tmp_path, script, *arguments(name, tmp_path)) as opened:
        profile = opened.profile
        assert profile.loop.trainer == library
        assert profile.loaders[0].batch_size == batch
        baseline = opened.base.baseline.replace(accumulation_steps=1)
        opened.base = changed(opened.base, config=baseline, baseline=baseline, trainer=library)
        assert samples_per_step(opened) == batch
        changes: dict[str, KnobValue] = {"workers": 1, "precision": "bf16"}
        assert samples_per_step(opened, batch_size=2 * batch, **changes) == 2 * batch
        assert samples_per_step(opened, accumulation_steps=2) == 2 * batch
        assert samples_per_step(opened) == batch
    assert not list(tmp_path.rglob("checkpoint-*")), "a trial saves nothing"
    best = tmp_path / "best.yaml"
    own: dict[str, KnobValue] = {"batch_size": batch, "accumulation_steps": 1}
    doubled: dict[str, KnobValue] = {"batch_size": 2 * batch, "accumulation_steps": 2}
    write_best(best, own, profile.training_loader, library, "cpu", **doubled)
    words = [str(best), str(PROGRAMS / script), *arguments(name, tmp_path)]
    ran = run_command("run", *words, cwd=tmp_path)
    assert ran.returncode == 0, ran.stderr
    ended = re.search(r"ended after (\d+) steps", ran.stdout)
    assert ended is not None
    assert int(ended[1]) == steps


@pytest.mark.slow
def test_epochs_that_end_before_the_loop_is_known_do_not_hang(tmp_path: Path) -> None:
    with open_rig(tmp_path, "hf_trainer.py", str(tmp_path / "out"), "16") as opened:
        assert opened.profile.loop.trainer == "transformers"
        opened.measured(precision="bf16")
