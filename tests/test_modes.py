"""What rigs learn of a program: how its epochs must end, and that it ends within seconds."""

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.knobs.space.spacefile import load
from autotune.machine import hardware
from autotune.measurement.outcome import Ending, Epochs, Outcome, RunMode
from autotune.program.program import parse_program
from autotune.rig.open_rig import Reports
from autotune.rig.rig_factory import RigFactory
from autotune.rig.wire import Ready
from autotune.tuning.live_rig import LiveRig, Stay
from tests.made import make_hardware
from tests.rigging import PROGRAMS, base_setting, never

pytestmark = pytest.mark.usefixtures("warm_starts")

TRACE = 'File "/home/user/train.py", line {}, in train'


def failed(said: str, suspect: Epochs | None, line: int = 12) -> Ending:
    return Ending(Outcome.CRASHED, said, TRACE.format(line), suspect=suspect)


def rigs_of(folder: Path, said: list[str], modes: list[RunMode], *args: str) -> RigFactory:
    subject = parse_program(str(PROGRAMS / "ends_its_epochs.py"), args, folder)
    reports = Reports(warning=said.append)
    return RigFactory(subject, folder / "run", make_hardware(), reports, remember=modes.append)


def test_what_a_failure_asks_for_is_tried_once_and_given_up_again(tmp_path: Path) -> None:
    said: list[str] = []
    modes: list[RunMode] = []
    with rigs_of(tmp_path, said, modes) as rigs:
        assert not rigs.learn(failed("RuntimeError: in the epoch", None))
        assert not rigs.learn(replace(failed("x", Epochs.TRUE), outcome=Outcome.OUT_OF_MEMORY))
        beyond = failed("ZeroDivisionError: modulo", Epochs.TRUE)
        assert rigs.learn(beyond)
        assert rigs.program.mode.epochs is Epochs.TRUE
        assert not rigs.learn(replace(beyond, suspect=None), as_written=False)
        assert rigs.program.mode.epochs is Epochs.TRUE, (
            "a config that fails so says nothing of the program"
        )
        assert not rigs.learn(replace(beyond, suspect=None)), "it fails with true ones, too"
        assert not rigs.learn(beyond)
        assert str(rigs.program.mode.epochs) == "endless"
    assert [mode.epochs for mode in modes] == ["true", "endless"]
    assert said[0] == (
        "ends_its_epochs.py fails if autotune prolongs its epoch (ZeroDivisionError at "
        "train.py:12): in trials, its epochs now end as the program expects."
    )


@pytest.mark.slow
def test_a_short_program_that_needs_true_epochs_is_measured(tmp_path: Path) -> None:
    """Sixty steps, in three epochs, whose evaluation needs all of its data."""
    said: list[str] = []
    modes: list[RunMode] = []
    with rigs_of(tmp_path, said, modes, "3") as rigs, LiveRig(rigs) as live:
        ready = live.observe(never)
        assert isinstance(ready, Ready), ready
        space = load("default").resolve(hardware.detect(), ready.profile)
        base = base_setting(ready.profile)
        live.set_up(space, base)
        stay = live.stay(base.config, never, 5.0)
        while isinstance(stay, Ending) and rigs.learn(stay):
            assert live.ready_for(base.config, never) is None
            stay = live.stay(base.config, never, 5.0)
        assert isinstance(stay, Stay), stay
        assert 0 < sum(len(turn.seconds) for turn in stay.turns) <= 60
    assert rigs.program.mode == RunMode(epochs=Epochs.TRUE)
    assert len(said) == 1
