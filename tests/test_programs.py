"""Loops as people write them: each knob works on them, or is refused by name with the reason."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from autotune.knobs.space.spacefile import load
from autotune.machine import hardware
from autotune.measurement.readings import Compilation
from autotune.measurement.turn import PlannedTurn, Taken
from autotune.program.config import KnobValue
from autotune.program.program import parse_program
from autotune.rig.rig import Rig
from autotune.rig.wire import Ready
from tests.rigging import OpenRig, applied_with, base_setting, fence, never, open_rig

pytestmark = pytest.mark.usefixtures("warm_starts", "emulated_bf16")

Changes = Mapping[str, KnobValue]
ALL: dict[str, KnobValue] = {
    "workers": 1,
    "batch_size": 32,
    "precision": "bf16",
    "threads": 1,
}


@dataclass(frozen=True)
class Expected:
    """Changes that are measured at once, samples per step then (0: they differ), and refusals."""

    works: Changes
    batch: float
    refused: Mapping[str, str] = field(default_factory=dict)


def expected(
    batch: float = 32, refused: Mapping[str, str] | None = None, **more: KnobValue
) -> Expected:
    refused = refused or {}
    changes: dict[str, KnobValue] = {**ALL, **more}
    works = {knob: value for knob, value in changes.items() if knob not in refused}
    return Expected(works, batch, refused)


PROGRAMS = {
    "loops.py gan": expected(refused={"accumulation_steps": "2 optimizers"}),
    "loops.py lbfgs": expected(refused={"accumulation_steps": "LBFGS", "optimizer": "LBFGS"}),
    "loops.py never_clears": expected(refused={"accumulation_steps": "zero_grad"}),
    "loops.py called_twice": expected(64, accumulation_steps=2),
    "loops.py inner_loss": expected(64, accumulation_steps=2),
    "loops.py two_loaders": expected(
        16,
        dict.fromkeys(
            ("workers", "batch_size", "accumulation_steps", "prefetch_factor"), "2 loaders"
        ),
    ),
    "loops.py accumulates": expected(64, {"accumulation_steps": "accumulates gradients itself"}),
    "loops.py subclass": expected(64, accumulation_steps=2),
    "loops.py batch_sampler": expected(0, {"batch_size": "batch sampler"}),
    "loops.py iterable": expected(64, {"workers": "iterable"}, accumulation_steps=2),
    "loops.py drop_last": expected(64, accumulation_steps=2),
    "loops.py next_iter": expected(),
    "no_loader.py": expected(
        24, dict.fromkeys(("workers", "batch_size", "accumulation_steps"), "without a torch")
    ),
    "loops.py small_data": expected(40, {"batch_size": "batches of 128 cut"}, workers=1),
}


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_loop_takes_every_knob_or_says_which_not_and_why(program: str, tmp_path: Path) -> None:
    case = PROGRAMS[program]
    with open_rig(tmp_path, *program.split(), space="full") as opened:
        space = load("full").resolve(hardware.detect(), opened.profile)
        for knob, words in case.refused.items():
            assert knob not in space.domains
            assert words in space.refused[knob], knob
        for knob in case.works:
            assert knob in space.domains, space.refused.get(knob)
        measured = opened.measured(**case.works)
        assert not case.batch or measured.largest_step == case.batch
        opened.measured()


EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("example", "samples", "loaders", "trainer"),
    [
        ("digits_cnn", 32, 1, ""),
        ("photos_resnet", 4, 1, ""),
        ("char_gpt", 2, 0, ""),
        ("tabular_transformer", 4, 1, ""),
        ("lightning_denoiser", 4, 1, "lightning"),
    ],
)
def test_the_examples_are_understood_as_they_are(
    tmp_path: Path, example: str, samples: int, loaders: int, trainer: str
) -> None:
    arguments = ["--batch-size", str(samples)]  # small steps show the same sooner
    if example == "photos_resnet":
        arguments += ["--data", str(tmp_path / "data")]
    program = parse_program(str(EXAMPLES / example / "train.py"), arguments, tmp_path)
    with Rig(program, tmp_path / "rig", tmp_path / "cache", fence()) as rig:
        ready = rig.open(None, never, 120.0)
        assert isinstance(ready, Ready), ready
        measured = OpenRig(rig, ready.profile, base_setting(ready.profile)).measured()
    assert measured.samples_per_step == samples
    assert len(ready.profile.loaders) == loaders
    assert ready.profile.loop.trainer == trainer


def test_each_example_that_trains_is_tested_and_listed() -> None:
    scripts = {path.parent.name for path in EXAMPLES.glob("*/train.py")}
    (cases,) = (
        mark.args[1]
        for mark in test_the_examples_are_understood_as_they_are.pytestmark  # type: ignore[attr-defined]
        if mark.name == "parametrize"
    )
    assert scripts == {case[0] for case in cases}
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    folders = {path.name for path in EXAMPLES.iterdir() if path.is_dir()}
    assert all(f"]({name}" in listed for name in folders if not name.startswith("__"))


@pytest.mark.slow
def test_shapes_that_change_in_every_step_do_not_recompile_for_ever(tmp_path: Path) -> None:
    with open_rig(tmp_path, "loops.py", "changing_shapes", space="full") as opened:
        base = opened.base
    applied = applied_with(base, compile="default")
    again = tmp_path / "again"
    again.mkdir()
    with open_rig(again, "loops.py", "changing_shapes", applied=applied) as opened:
        taken = opened.rig.take_turns([applied], [PlannedTurn(0, 30)], never, 600.0)
    assert isinstance(taken, Taken), taken
    assert taken.compilation is not None
    assert taken.compilation.seconds > 0.1
    assert 1 <= taken.compilation.recompiles <= 3, "then for any shape"


def test_a_program_takes_turns_and_compiles_its_model_once(tmp_path: Path) -> None:
    with open_rig(tmp_path, "loops.py", "iterable") as opened:
        configs = opened.base, applied_with(opened.base, compile="default")
        schedule = [PlannedTurn(n, 3) for n in (0, 1, 0, 1, 0)]
        first, again = (opened.rig.take_turns(configs, schedule, never, 600.0) for _ in range(2))
    assert isinstance(first, Taken), first
    assert isinstance(again, Taken), again
    assert first.compilation is not None
    assert first.compilation.graphs > 0
    assert [turn.is_quiet for turn in first.turns[:3]] == [True, False, True]
    assert all(turn.is_quiet for turn in again.turns)
    assert str(Compilation(12.4, 1, 0, 0)) == "compiled in 12s"
    assert str(Compilation(12.4, 3, 1, 2)) == "compiled in 12s, 1 recompilation, 2 graph breaks"
