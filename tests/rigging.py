"""What the tests of live rigs share: opening one on a tiny program, and configs for it."""

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from time import monotonic, sleep
from typing import Any

import psutil

from autotune.knobs.space.spacefile import load
from autotune.machine import hardware
from autotune.measurement.examination import StepBreakdown
from autotune.measurement.measurement import Measurement
from autotune.measurement.outcome import Ending
from autotune.measurement.turn import PlannedTurn, Turn
from autotune.program.applied_config import AppliedConfig, ProgramTraits
from autotune.program.config import Config, KnobValue
from autotune.program.fence_options import FenceKind, FenceOptions
from autotune.program.lr import LrRule
from autotune.program.profile import LoaderFacts, Profile
from autotune.program.program import parse_program
from autotune.results.bestfile import MadeOn
from autotune.rig.fence import Fence, raise_fence
from autotune.rig.open_rig import SILENT, Reports
from autotune.rig.rig import Rig
from autotune.rig.wire import Ready
from tests.made import make_best

PROGRAMS = Path(__file__).parent / "programs"
SHORT_S = 0.3


@cache
def fence() -> Fence:
    """Return the fence of this test process; conftest.py raises it first and takes it down."""
    return raise_fence(FenceOptions(), Path(tempfile.gettempdir()))


def run_command(*words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the real command, as a user does."""
    return subprocess.run(
        [sys.executable, "-m", "autotune", *words],
        cwd=cwd, capture_output=True, text=True, timeout=300, check=False,
    )  # fmt: skip


def free_port() -> int:
    """Return a port on which nobody listens now."""
    with socket.create_server(("localhost", 0)) as probe:
        return int(probe.getsockname()[1])


def rig_on(folder: Path, program: str, *args: str, **options: Any) -> Rig:
    """Return a rig, not yet open, on one of the tiny programs; *options* are of ``Rig()``."""
    subject = parse_program(str(PROGRAMS / program), args, folder)
    return Rig(subject, folder / "rig", folder / "cache", fence(), **options)


def never() -> Ending | None:
    """Do not give up."""
    return None


@contextmanager
def talking(code: str, *args: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run Python code until its input ends; gives the process and the first line it prints."""
    command = [sys.executable, "-c", code, *args]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        yield process, process.stdout.readline().strip()


def wait_for(condition: Callable[[], object], patience_s: float = 20.0) -> bool:
    """Wait until a condition holds; *patience_s* is how long a busy machine may take."""
    until = monotonic() + patience_s
    while not condition():
        if monotonic() > until:
            return False
        sleep(0.01)
    return True


def is_running(pid: int) -> bool:
    """Tell whether a process still runs; a zombie that nobody reaps does not."""
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE


@dataclass
class OpenRig:
    """A rig on which the untouched program stands at a border."""

    rig: Rig
    profile: Profile
    base: AppliedConfig

    def measure(self, silence_s: float = 60.0, **changes: KnobValue) -> Measurement | Ending:
        """Let the baseline with some knobs changed train alone for a while."""
        applied = replace(self.base, config=self.base.baseline.replace(**changes))
        until, found = monotonic() + SHORT_S, list[Turn]()
        while True:
            taken = self.rig.take_turns([applied], [PlannedTurn(0, 3)] * 2, never, silence_s)
            if isinstance(taken, Ending):
                return taken
            found += taken.turns
            assert all(turn.is_finite for turn in taken.turns)
            if monotonic() > until or not taken.turns:
                return Measurement.of(found, taken)

    def measured(self, **changes: KnobValue) -> Measurement:
        """Measure, and insist that it works."""
        result = self.measure(60.0, **changes)
        assert isinstance(result, Measurement), result
        return result

    def seen(self, path: Path) -> Path:
        """Return where to read what the program wrote: only its own view has it."""
        if fence().kind is FenceKind.OVERLAY:
            return Path(f"/proc/{self.rig.pid}/root{path}")
        return Path(f"{self.rig.live.place.view.shadow_dir}{path}")

    def profile_step(self) -> StepBreakdown:
        """Take apart what was measured last."""
        breakdown = self.rig.profile_step(SHORT_S, never, 60.0)
        assert isinstance(breakdown, StepBreakdown), breakdown
        return breakdown


@contextmanager
def open_rig(
    directory: Path,
    program: str,
    *args: str,
    applied: AppliedConfig | None = None,
    space: str = "default",
    behind: Fence | None = None,
    reports: Reports = SILENT,
) -> Iterator[OpenRig]:
    """Open a rig on one of the tiny programs; *program* may name a function after a colon.

    Args:
        behind: A fence of the rig's own; by default it is that of all tests.
    """
    subject = parse_program(str(PROGRAMS / program), args, directory)
    # headers are compiled once for all tests
    compiled = Path(os.environ.get("AUTOTUNE_TESTS_COMPILED", directory / "compiled"))
    gpus = tuple(gpu.uuid for gpu in hardware.detect().gpus)
    with Rig(subject, directory / "rig", compiled, behind or fence(), gpus, reports) as rig:
        ready = rig.open(applied, never, 120.0)
        assert isinstance(ready, Ready), ready
        assert ready.first_step_s is not None
        assert 0 < ready.first_step_s <= ready.startup_s
        yield OpenRig(rig, ready.profile, base_setting(ready.profile, space=space))


def base_setting(profile: Profile, space: str = "default") -> AppliedConfig:
    """Return the baseline's setting for a program with this profile, as the search makes it."""
    baseline = load(space).resolve(hardware.detect(), profile).baseline
    return AppliedConfig.as_written(baseline, profile, LrRule.LINEAR)


def applied_with(base: AppliedConfig, **changes: KnobValue) -> AppliedConfig:
    """Return a setting with some knobs changed."""
    return replace(base, config=Config({**base.baseline, **changes}))


def write_best(
    path: Path,
    baseline: dict[str, KnobValue],
    loader: LoaderFacts | None = None,
    trainer: str = "",
    device: str = "cpu",
    **changes: KnobValue,
) -> None:
    """Write a best.yaml for this machine whose config differs from the baseline by *changes*."""
    search = make_best().search.model_copy(update={"digest": ""})
    best = make_best(
        config={**baseline, **changes},
        baseline=baseline,
        traits=ProgramTraits(device, loader, trainer=trainer),
        program="train.py",
        search=search,
        made_on=MadeOn.on(hardware.detect()),
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(best.text(), encoding="utf-8")
