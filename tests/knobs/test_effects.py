"""Each knob's effect, seen by the running program itself (tests/programs/mirror.py)."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from autotune.program.applied_config import AppliedConfig
from autotune.program.config import KnobValue
from tests.rigging import OpenRig, open_rig

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("warm_starts", "emulated_bf16")]

SPACE = "full"


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
def mirrored(directory: Path, *words: str, **changes: KnobValue) -> Iterator[Mirrored]:
    """Open a rig on the mirror, untouched, or restarted under some changes."""
    applied: AppliedConfig | None = None
    if changes:
        with open_rig(directory, "mirror.py", str(directory / "first"), *words, space=SPACE) as rig:
            base = rig.base
        applied = replace(base, config=base.baseline.replace(**changes))
        directory /= "changed"  # a rig leaves the mirror of another as it is
        directory.mkdir()
    mirror = directory / "mirror.jsonl"
    with open_rig(directory, "mirror.py", str(mirror), *words, applied=applied, space=SPACE) as rig:
        yield Mirrored(rig, mirror)


def all_see(seen: list[dict[str, Any]], what: str, value: object) -> bool:
    return bool(seen) and {json.dumps(s[what]) for s in seen} == {json.dumps(value)}


def test_live_knobs_of_the_process_act_and_return(tmp_path: Path) -> None:
    with mirrored(tmp_path) as program:
        baseline = program.open.base.baseline
        base = program.under()
        assert all_see(program.under(threads=1), "threads", 1)
        assert all_see(program.under(precision="medium"), "matmul_precision", "medium")
        chosen = {b: program.under(attention=b)[-1]["kernel"] for b in ("flash", "math")}
        assert chosen["flash"] != chosen["math"]
        assert all_see(program.under(optimizer="fused"), "flags", [False, True])
        assert all_see(program.under(optimizer="foreach"), "flags", [True, False])
        back = program.under()
        for what in ("threads", "matmul_precision", "kernel"):
            assert all_see(back, what, base[0][what]), what
    read = {"in_order": True, "attention": "auto", "optimizer": "for-loop", "precision": "fp32"}
    assert read.items() <= dict(baseline).items()


def test_workers_start_live_as_asked_and_live_on_from_epoch_to_epoch(tmp_path: Path) -> None:
    with mirrored(tmp_path) as program:
        assert all_see(program.under(workers=0), "workers", [-1])
        seen = program.under(workers=2)
        assert {s["workers"][0] for s in seen[2:]} == {0, 1}
        seen = program.under(workers=2, worker_threads=2)
        assert all_see(seen[2:], "worker_threads", 2)
        assert all_see(program.under(workers=2)[2:], "worker_threads", 1)
        for method, process in (("spawn", "SpawnProcess"), ("forkserver", "ForkServerProcess")):
            seen = program.under(workers=1, worker_start_method=method)
            assert all_see(seen[1:], "process", process)
        program.under(workers=1, batch_size=128)
        lasting = program.many_under(20, workers=1, batch_size=128)
        assert len({s["pid"] for s in lasting}) == 1


def test_without_order_a_slow_batch_is_overtaken(tmp_path: Path) -> None:
    with mirrored(tmp_path) as program:
        ordered = program.many_under(64, workers=2, prefetch_factor=4)
        loose = program.many_under(64, workers=2, prefetch_factor=4, in_order=False)
    assert not overtaken(ordered)
    assert overtaken(loose)


def overtaken(seen: list[dict[str, Any]]) -> int:
    """Batches that came after a later one of the same epoch."""
    return sum(0 < b["first"] < a["first"] for a, b in pairwise(seen))


def test_what_torch_fixes_at_its_start_is_set_before_it(tmp_path: Path) -> None:
    """Also where the program sets it as well."""
    with mirrored(tmp_path, "setup", flush_denormal=True) as program:
        seen = program.under()
    assert all_see(seen, "flushes", True)
