"""torch.compile as a knob: it reaches the model, costs what is shown, and comes to an end."""

from pathlib import Path

import pytest

from autotune.measurement.readings import Compilation
from autotune.measurement.turn import PlannedTurn, Taken
from tests.rigging import applied_with, never, open_rig

pytestmark = pytest.mark.usefixtures("warm_starts")


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
