"""Checks of what happens inside a program's process: rigs on small programs, and the seams alone.

``python -m benchmarks.gpu.rigs NAME [--rehearse]`` prints one line of JSON for each finding. It is
a process of its own, so that it can be killed with all that it has started. It imports torch for
the seams alone: a CUDA context beside a rig would hold memory of the device.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import count
from pathlib import Path
from time import monotonic
from typing import Any

import psutil

from autotune.errors import FenceError
from autotune.knobs.space.spacefile import load
from autotune.machine import hardware
from autotune.measurement.outcome import Ending, Outcome
from autotune.measurement.turn import PlannedTurn, Taken
from autotune.program.applied_config import AppliedConfig
from autotune.program.config import KnobValue
from autotune.program.fence_options import FenceKind, FenceOptions
from autotune.rig.fence import Fence, raise_fence
from autotune.rig.open_rig import Reports
from benchmarks import self_check
from benchmarks.gpu.bench import Finding, Status, used_bytes, verdict
from benchmarks.gpu.listed import FOLDER
from benchmarks.gpu.program_check import OFF, judge_held
from benchmarks.strategies import STRATEGIES
from tests.rigging import OpenRig, applied_with, never, open_rig

SILENCE_S = 60.0  # of a program that compiles
READY_WITHIN_S = 45.0  # with compiled code
FORECAST_OFF = 0.15  # what a forecast of memory may be off by
LOSS_OFF = 0.01
STEPS = 20
BEYOND = 16  # times a batch that takes 12 % of the device
ROOM_BYTES = 100 << 20  # for a rehearsal, whose batch x16 takes 250 MiB more than the others


def _strongest(folder: Path, kind: FenceKind | None) -> Fence:
    """Return a fence of a kind, or the strongest that works here: containers may know no other."""
    with suppress(FenceError):
        return raise_fence(FenceOptions(kind=kind), folder)
    return raise_fence(FenceOptions(kind=kind or FenceKind.GUARD), folder)


@dataclass(frozen=True)
class Place:
    """Where a check runs."""

    device: str  # on which programs have to train: ``cuda``, or ``cpu`` in a rehearsal
    folder: Path
    programs: Path = FOLDER

    @contextmanager
    def rig(self, *line: str, kind: FenceKind | None = None, **options: Any) -> Iterator[OpenRig]:
        """Open a rig on a program behind a fence of its own; an AssertionError says why not."""
        folder = Path(tempfile.mkdtemp(dir=self.folder))
        program = self.programs / line[0]
        with _strongest(folder, kind) as behind:
            options["behind"] = behind
            with open_rig(folder, str(program), *line[1:], **options) as opened:
                yield opened

    def tiny(self, *flags: str) -> Sequence[str]:
        """Return flags that make a program small enough for a CPU; none beside a GPU."""
        return flags if self.device == "cpu" else ()


def fence(place: Place) -> Iterator[Finding]:
    """A program behind each kind of fence has its device, pins memory and runs compiled code."""
    line = "habits.py", "--compiled", *place.tiny("--gib", "0.01")

    def behind(kind: FenceKind) -> Finding:
        with place.rig(*line, kind=kind) as opened:
            device, seen = opened.profile.device, opened.measured().memory.device_reserved_bytes
        text = f"{kind}: the program trains on {device}, {_told(seen)}"
        wanted = None if place.device == "cpu" else 2 << 30  # its table
        is_right = seen == wanted or abs((seen or 0) - (wanted or 0)) < OFF * (2 << 30)
        return verdict(text, holds=device == place.device and is_right)

    yield from _at_once({kind: partial(behind, kind) for kind in FenceKind})


def _told(reserved: int | None) -> str:
    return "no GPU" if reserved is None else f"{reserved / 2**30:.2f} GiB of the GPU reserved"


def early(place: Place) -> Iterator[Finding]:
    """A program may choose its GPU, and fork, before it uses CUDA: nobody has asked for devices."""

    def under(flags: Sequence[str], device: str) -> Finding:
        with place.rig("habits.py", "--gib", "0.01", *flags) as opened:
            seen = opened.profile.device
        return verdict(f"{flags}: the program trains on {seen}", holds=seen == device)

    asked = {("--gpu", ""): "cpu", ("--forks",): place.device}
    yield from _at_once({str(f): partial(under, f, device) for f, device in asked.items()})


def inside(place: Place) -> Iterator[Finding]:
    """The seams alone, in this process."""
    from tests.inside.on_device import PARTS

    for part in PARTS:
        try:
            yield part(place.device)
        except Exception as error:  # noqa: BLE001 - whatever it is, the other parts count as well
            traceback.print_exc()
            yield Finding(Status.FAIL, f"{part.__name__}: {error!r}"[:300])


def settings(place: Place) -> Iterator[Finding]:
    """Each live setting that is offered trains, and only a device's memory is told as such."""
    with place.rig("conv.py", "--side", "8", "--channels", "8", "--layers", "3") as opened:
        space = load("default").resolve(hardware.detect(), opened.profile)
        for knob in sorted(space.domains.keys() - space.restart):
            value = space.domains[knob].values[-1]
            seen = opened.measured(**{knob: value}).memory.device_reserved_bytes
            told = f"{knob}={value} trains, {_told(seen)}"
            yield verdict(told, holds=(seen is None) == (place.device == "cpu"))


def memory(place: Place) -> Iterator[Finding]:
    """Batches up to the limit are forecast, one beyond it ends as such, and leaves nothing."""
    line = ["conv.py", "--workers", "0", "--layers", "24", "--fill", "0.12"]
    line += place.tiny("--layers", "4", "--channels", "16")
    used_before, warnings = used_bytes(), list[str]()
    reports = Reports(warning=warnings.append)
    with place.rig(*line, reports=reports) as opened:
        own = int(opened.base.baseline["batch_size"])
        measured = [opened.measured(batch_size=times * own) for times in (1, 2, 4)]
        if place.device == "cpu":
            _limit(opened)
        ended = opened.measure(batch_size=BEYOND * own)
    peaks = [one.memory.needed_bytes or 0 for one in measured]
    forecast = peaks[1] + 2 * (peaks[1] - peaks[0])
    told = [f"{peak / 2**30:.2f}" for peak in (*peaks, forecast)]
    text = "batches x1, x2, x4 take {}, {}, {} GiB; the last was forecast as {}".format(*told)
    is_sampled = place.device == "cpu"  # seldom, on a busy machine
    yield verdict(text, holds=is_sampled or abs(forecast - peaks[2]) <= FORECAST_OFF * peaks[2])
    full = {"cuda": Outcome.OUT_OF_MEMORY, "cpu": Outcome.HOST_OUT_OF_MEMORY}[place.device]
    how = f"{ended.outcome} ({ended.reason})" if isinstance(ended, Ending) else "training"
    is_full = isinstance(ended, Ending) and ended.outcome is full
    yield verdict(f"batch x{BEYOND} ends as {how}", holds=is_full)
    with place.rig(*line, reports=reports) as opened:
        again = opened.measured().memory.needed_bytes or 0
    text = f"the program as written trains again, with {again / 2**30:.2f} GiB"
    yield verdict(text, holds=is_sampled or abs(again - peaks[0]) <= FORECAST_OFF * peaks[0])
    held = [warning for warning in warnings if "memory did not come back" in warning]
    yield verdict(" ".join(held) or "no memory is held", holds=not held)
    if used_before is not None and (used := used_bytes()) is not None:
        yield judge_held(used_before, used)


def _limit(opened: OpenRig) -> None:
    """Leave a program little more address space than it has, as a device has an end."""
    pid = opened.rig.pid
    assert pid is not None, "it was opened"
    most = psutil.Process(pid).memory_info().vms + ROOM_BYTES
    resource.prlimit(pid, resource.RLIMIT_AS, (most, resource.RLIM_INFINITY))


def canary(place: Place) -> Iterator[Finding]:
    """A sound program of convolutions, which round in TF32, is not called different."""
    line = [f"{place.programs}/conv.py", *place.tiny("--side", "8")]
    found = self_check.verdict(" ".join(line))
    told = f"under {found['config']} it trains the {found['verdict']}"
    yield verdict(told, found, holds=found["verdict"].startswith("same"))


def compiled(place: Place) -> Iterator[Finding]:
    """Compiled code is ready soon, trains the same, and keeps the outputs that a program keeps."""
    yield from _agree(place, [{"compile": mode} for mode in ("default", "reduce-overhead")])


def strategies(place: Place) -> Iterator[Finding]:
    """One rank of each strategy, over NCCL or gloo, trains what the program does."""
    yield from _agree(place, [{"devices": f"{name}-1"} for name in STRATEGIES])


def _agree(place: Place, configs: Sequence[Mapping[str, KnobValue]]) -> Iterator[Finding]:
    line = "habits.py", "--gib", "0.01"
    with place.rig(*line) as opened:
        base = opened.base
        wanted = _losses(opened, base)

    def under(changes: Mapping[str, KnobValue]) -> Finding:
        applied, began = applied_with(base, **changes), monotonic()
        with place.rig(*line, applied=applied) as opened:
            ready_s = monotonic() - began
            losses = _losses(opened, applied)
            larger = int(base.baseline["batch_size"]) * 2
            more = _losses(opened, applied_with(base, **changes, batch_size=larger))
        both = losses.keys() & wanted.keys()
        off = max(abs(losses[step] - wanted[step]) for step in both)
        text = f"{changes}: ready after {ready_s:.0f} s, losses differ by {off:.1g} in {len(both)} "
        text += f"steps; {len(more)} with twice the batch"
        is_soon = ready_s <= READY_WITHIN_S or place.device == "cpu"
        return verdict(text, holds=off <= LOSS_OFF and is_soon)

    yield from _at_once({str(changes): partial(under, changes) for changes in configs})


def _losses(opened: OpenRig, applied: AppliedConfig) -> dict[int, float]:
    """Return the losses of the next steps, by their number."""
    taken = opened.rig.take_turns([applied], [PlannedTurn(0, 1)] * STEPS, never, SILENCE_S)
    assert isinstance(taken, Taken), taken
    steps = count(taken.steps - len(taken.turns))
    return {step: turn.loss for step, turn in zip(steps, taken.turns, strict=False) if turn.loss}


def _at_once(asked: Mapping[str, Callable[[], Finding]]) -> Iterator[Finding]:
    """Yield what is found by several rigs at the same time: none of them is timed."""

    def one(name: str) -> Finding:
        try:
            return asked[name]()
        except FenceError as refusal:
            return Finding(Status.SKIP, f"{name}: {refusal}")
        except AssertionError as failed:
            return Finding(Status.FAIL, f"{name}: {failed}")

    with ThreadPoolExecutor() as pool:
        yield from pool.map(one, asked)


CHECKS = {
    check.__name__: check
    for check in (fence, early, inside, settings, memory, canary, compiled, strategies)
}


def main(arguments: Sequence[str]) -> None:
    """Run one check, and print what it finds as soon as it is found."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.rigs")
    parser.add_argument("check", choices=CHECKS)
    parser.add_argument("--rehearse", action="store_true")
    asked = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="gpu-check-") as folder:
        place = Place("cpu" if asked.rehearse else "cuda", Path(folder))
        try:
            for finding in CHECKS[asked.check](place):
                print(json.dumps(asdict(finding)), flush=True)
        except AssertionError as failed:
            print(json.dumps(asdict(Finding(Status.FAIL, str(failed)))), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
