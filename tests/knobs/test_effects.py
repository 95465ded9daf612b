"""Each knob's effect, seen by the running program itself (tests/programs/mirror.py)."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from autotune.knobs.malloc import SONAMES
from autotune.machine import hardware
from autotune.program.applied_config import AppliedConfig
from autotune.program.config import KnobValue
from tests.rigging import OpenRig, base_setting, open_rig

pytestmark = pytest.mark.usefixtures("warm_starts", "emulated_bf16")

SPACE = "full"
DEBUGGING = """
version: 1
knobs: {anomaly_detection: auto, zero_grad_to_none: auto, deterministic_algorithms: [false]}
"""


@dataclass
class Mirrored:
    """An open rig on the mirror, and what it wrote."""

    open: OpenRig
    mirror: Path

    def under(self, **changes: KnobValue) -> list[dict[str, Any]]:
        """Measure with some knobs changed; return what the program saw in its steps."""
        before = len(self.lines())
        self.open.measured(**changes)
        return self.lines()[before + 1 :]

    def many_under(self, count: int, **changes: KnobValue) -> list[dict[str, Any]]:
        """Return what the program saw in at least so many steps, those of the switch left out."""
        seen = self.under(**changes)[1:]
        while len(seen) < count:
            seen += self.under(**changes)
        return seen

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self.open.seen(self.mirror).read_text().splitlines()]


@contextmanager
def mirrored(
    directory: Path, *words: str, space: str = SPACE, **changes: KnobValue
) -> Iterator[Mirrored]:
    """Open a rig on the mirror, untouched, or restarted under some changes."""
    applied: AppliedConfig | None = None
    if changes:
        base = base_of(words)
        applied = replace(base, config=base.baseline.replace(**changes))
        directory /= "changed"  # a rig leaves the mirror of another as it is
        directory.mkdir()
    mirror = directory / "mirror.jsonl"
    with open_rig(directory, "mirror.py", str(mirror), *words, applied=applied, space=space) as rig:
        yield Mirrored(rig, mirror)


@cache
def base_of(words: tuple[str, ...]) -> AppliedConfig:
    """Return the mirror's baseline under these arguments, as a rig sees it."""
    with TemporaryDirectory() as folder:
        mirror = str(Path(folder) / "mirror.jsonl")
        with open_rig(Path(folder), "mirror.py", mirror, *words, space=SPACE) as rig:
            return rig.base


def all_see(seen: list[dict[str, Any]], what: str, value: object) -> bool:
    """Tell whether all steps but those of the switch saw this value."""
    return bool(seen) and {json.dumps(s[what]) for s in seen} == {json.dumps(value)}


def test_live_knobs_of_the_process_act_and_return(tmp_path: Path) -> None:
    with mirrored(tmp_path) as program:
        base = program.under()
        assert all_see(program.under(num_threads=1), "threads", 1)
        assert all_see(program.under(matmul_precision="medium"), "matmul_precision", "medium")
        chosen = {b: program.under(sdpa_backend=b)[-1]["kernel"] for b in ("flash", "math")}
        assert chosen["flash"] != chosen["math"]
        back = program.under()
        for what in ("threads", "matmul_precision", "kernel"):
            assert all_see(back, what, base[0][what]), what


def test_workers_start_live_and_think_with_as_many_threads_as_asked(tmp_path: Path) -> None:
    with mirrored(tmp_path) as program:
        assert all_see(program.under(num_workers=0), "workers", [-1])
        seen = program.under(num_workers=2)
        assert {s["workers"][0] for s in seen[2:]} == {0, 1}
        assert all_see(program.under(num_workers=2)[2:], "worker_threads", 1)
        seen = program.under(num_workers=2, worker_threads=2)
        assert all_see(seen[2:], "worker_threads", 2)
        assert all_see(program.under(num_workers=2)[2:], "worker_threads", 1)


def test_persistent_workers_live_on_from_epoch_to_epoch(tmp_path: Path) -> None:
    with mirrored(tmp_path) as program:
        passing = program.many_under(20, num_workers=1, batch_size=128)
        lasting = program.many_under(20, num_workers=1, batch_size=128, persistent_workers=True)
    assert len({s["pid"] for s in passing}) > 2
    assert len({s["pid"] for s in lasting}) == 1


def test_without_order_a_slow_batch_is_overtaken(tmp_path: Path) -> None:
    with mirrored(tmp_path) as program:
        ordered = program.many_under(64, num_workers=2, prefetch_factor=4)
        loose = program.many_under(64, num_workers=2, prefetch_factor=4, in_order=False)
    assert not overtaken(ordered)
    assert overtaken(loose)


def overtaken(seen: list[dict[str, Any]]) -> int:
    """Batches that came after a later one of the same epoch."""
    return sum(0 < b["first"] < a["first"] for a, b in pairwise(seen))


@pytest.mark.parametrize(
    ("method", "process"),
    [("spawn", "SpawnProcess"), ("forkserver", "ForkServerProcess"), ("fork", "ForkProcess")],
)
def test_workers_begin_as_asked(tmp_path: Path, method: str, process: str) -> None:
    with mirrored(tmp_path) as program:
        seen = program.under(num_workers=1, worker_start_method=method)
    assert all_see(seen[1:], "process", process)


def test_optimizers_walk_their_parameters_as_asked(tmp_path: Path) -> None:
    with mirrored(tmp_path) as program:
        for name, flags in (
            ("fused", [False, True]),
            ("foreach", [True, False]),
            ("for-loop", [False, False]),
        ):
            seen = program.under(optimizer_implementation=name)
            if name != program.open.base.baseline["optimizer_implementation"]:
                assert all_see(seen, "flags", flags), name


def test_what_a_script_left_on_for_debugging_goes_off_and_on_again(tmp_path: Path) -> None:
    space = tmp_path / "debug.yaml"
    space.write_text(DEBUGGING, encoding="utf-8")
    with mirrored(tmp_path, "debug", space=str(space)) as program:
        base = program.open.base.baseline
        assert base["deterministic_algorithms"] is True
        assert base["anomaly_detection"] is True
        assert base["zero_grad_to_none"] is False
        for knob, what in (
            ("deterministic_algorithms", "deterministic"),
            ("anomaly_detection", "anomaly"),
        ):
            assert all_see(program.under(**{knob: False}), what, False)
            assert all_see(program.under(), what, True)
        assert all_see(program.under(zero_grad_to_none=True), "grad_is_none", True)
        assert all_see(program.under(), "grad_is_zero", True)


def test_a_profiler_left_on_ends_at_the_first_step(tmp_path: Path) -> None:
    with mirrored(tmp_path, "profile") as program:
        assert program.open.base.baseline["autograd_profiler"] is True
        assert all_see(program.under(), "profiles", True)
    with mirrored(tmp_path, "profile", autograd_profiler=False) as program:
        program.under()
        assert all_see(program.lines(), "profiles", False)


def test_a_script_that_left_nothing_on_is_offered_nothing_to_switch_off(tmp_path: Path) -> None:
    with mirrored(tmp_path) as program:
        offered = program.open.base.baseline
        program.under()
    debugging = {"deterministic_algorithms", "anomaly_detection", "autograd_profiler"}
    assert not (debugging | {"zero_grad_to_none"}) & set(offered)


def test_what_torch_fixes_at_its_start_is_set_before_it(tmp_path: Path) -> None:
    """Also where the program sets it as well."""
    with mirrored(tmp_path, "setup", interop_threads=1, flush_denormal=True) as program:
        seen = program.under()
    assert all_see(seen, "interop_threads", 1)
    assert all_see(seen, "flushes", True)


@pytest.mark.skipif(
    SONAMES["jemalloc"] not in hardware.detect().libraries, reason="jemalloc is not installed"
)
@pytest.mark.real_starts
def test_another_malloc_is_preloaded(tmp_path: Path) -> None:
    with mirrored(tmp_path, malloc="jemalloc") as program:
        assert all_see(program.lines(), "jemalloc", True)


def test_the_profile_of_the_mirror_names_the_baseline_of_each(tmp_path: Path) -> None:
    with mirrored(tmp_path) as program:
        baseline = base_setting(program.open.profile, space=SPACE).baseline
    assert baseline["worker_start_method"] in {"fork", "forkserver"}
    assert baseline["in_order"] is True
    assert baseline["sdpa_backend"] == "auto"
    assert baseline["optimizer_implementation"] == "for-loop"
    assert baseline["matmul_precision"] == "highest"
