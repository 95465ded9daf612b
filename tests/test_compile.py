"""torch.compile as a knob: it reaches the model, costs what is shown, and comes to an end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autotune.measurement.compilation import Compilation
from autotune.measurement.measurement import Measurement
from autotune.program.config import KnobValue
from autotune.rig.wire import WindowPlan
from tests.rigging import OpenRig, open_rig

pytestmark = pytest.mark.usefixtures("warm_starts")

PLAN = WindowPlan(warmup_min_s=0.5, warmup_max_s=6.0, window_min_s=0.5, window_max_s=2.0)


def compiled(directory: Path, program: str, **changes: KnobValue) -> Measurement:
    """Measure a program as written and, in a process of its own, compiled; return the latter."""
    with open_rig(directory, program, space="full") as opened:
        base = opened.base
        assert measure(opened).compilation is None
    changes = {"compile": "default", **changes}
    applied = replace(base, config=base.baseline.replace(**changes))
    again = directory / "again"
    again.mkdir()
    with open_rig(again, program, applied=applied) as opened:
        opened.base = base
        return measure(opened, **changes)


def measure(opened: OpenRig, **changes: KnobValue) -> Measurement:
    result = opened.measure(PLAN, 600.0, **changes)
    assert isinstance(result, Measurement), result
    return result


@pytest.mark.slow
def test_shapes_that_change_in_every_step_do_not_recompile_for_ever(tmp_path: Path) -> None:
    window = compiled(tmp_path, "changing_shapes.py", compile_dynamic="never")
    assert window.compilation is not None
    assert window.compilation.seconds > 0.1
    assert 7 <= window.compilation.recompiles <= 16
    assert any("gave up" in warning for warning in window.warnings)


@pytest.mark.parametrize(
    ("compilation", "words"),
    [
        (Compilation(12.4, 1, 0, 0), "compiled in 12s"),
        (Compilation(12.4, 3, 1, 2), "compiled in 12s, 1 recompilation, 2 graph breaks"),
    ],
)
def test_what_compiling_cost_reads_well(compilation: Compilation, words: str) -> None:
    assert str(compilation) == words
