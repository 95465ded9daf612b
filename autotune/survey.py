"""Survey: measures one config well, in a few fresh processes, without searching."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from autotune import first_start, preflight
from autotune.bestfile import BestFile
from autotune.console import Console
from autotune.errors import ProgramError
from autotune.facts import Facts
from autotune.failures import program_error
from autotune.fence import STRONGEST, FenceOptions
from autotune.hardware import Hardware
from autotune.live_rig import START_SILENCE_S
from autotune.measurement import Anatomy
from autotune.outcome import Ending, Outcome
from autotune.profile import Profile
from autotune.program import Program
from autotune.rig import Reports
from autotune.rigs import Rigs
from autotune.setting import Setting
from autotune.spacefile import load
from autotune.stop import Stop
from autotune.wire import WindowPlan

WINDOW = WindowPlan(
    warmup_min_s=3.0, warmup_max_s=20.0, window_min_s=4.0, window_max_s=10.0, half_width=0.01
)
CEILING = WindowPlan(warmup_min_s=0.5, warmup_max_s=4.0, window_min_s=1.0, window_max_s=2.0)


def survey(
    program: Program,
    best: BestFile | None,
    hardware: Hardware,
    processes: int,
    console: Console,
    fence: FenceOptions = STRONGEST,
) -> Facts:
    """Measure a program as written, or under a best.yaml.

    Args:
        program: The program.
        best: The config to run it under; None leaves it as written.
        hardware: This machine.
        processes: How many fresh processes are measured, one after another.
        console: Where progress is shown.
        fence: What the user says of the fence.

    Raises:
        ProgramError: when the program fails or trains too few steps.
        FenceError: when nothing keeps the program from changing the user's files.
    """
    doubts = preflight.doubts(hardware)
    if best is not None:
        doubts += best.doubts(hardware, program.fingerprint)
    for doubt in doubts:
        console.warn(doubt)
    found: list[Facts] = []
    reports = Reports(console.progress, console.warn, console.note)
    with (
        tempfile.TemporaryDirectory(prefix="autotune-") as folder,
        Stop(console.stopping) as stop,
        Rigs(program, Path(folder), hardware, reports, fence) as rigs,
    ):
        console.fenced(rigs.fence)
        for number in range(1, processes + 1):
            console.phase(f"process {number} of {processes}")
            subject = _Subject(rigs, program, best, hardware, stop)
            found.append(_one(subject, is_first=not found))
            if stop.requests:
                break
    measurements = tuple(m for facts in found for m in facts.measurements)
    return replace(found[0], measurements=measurements, machine_doubts=tuple(doubts))


class _Subject:
    """What is measured, and the rigs for it."""

    def __init__(
        self, rigs: Rigs, program: Program, best: BestFile | None, hardware: Hardware, stop: Stop
    ) -> None:
        self.rigs, self.program, self.best, self.hardware = rigs, program, best, hardware
        self._stop = stop

    def give_up(self) -> Ending | None:
        """Go on until the user stops it."""
        if self._stop.requests:
            return Ending(Outcome.INTERRUPTED, "stopped by Ctrl-C")
        return None

    def setting(self, profile: Profile) -> Setting:
        """The config that this is about."""
        if self.best is not None:
            return self.best.setting
        space = load("default").resolve(self.hardware, profile)
        return Setting.as_written(space.baseline, profile)


def _one(subject: _Subject, *, is_first: bool) -> Facts:
    """Measure one fresh process; the first is taken apart as well."""
    give_up = subject.give_up
    best = None if subject.best is None else subject.best.setting
    started = first_start.observe(subject.rigs, give_up, START_SILENCE_S, best)
    if isinstance(started, Ending):
        raise _failure(subject, started)
    with started:
        rig, profile = started.rig, started.ready.profile
        setting = subject.setting(profile)
        measurement = rig.measure(setting, WINDOW, give_up, START_SILENCE_S)
        if isinstance(measurement, Ending):
            raise _failure(subject, measurement)
        anatomy = rig.dissect(CEILING, give_up, START_SILENCE_S) if is_first else Anatomy()
    return Facts(
        str(subject.program),
        setting.config,
        subject.hardware,
        profile,
        (measurement,),
        anatomy if isinstance(anatomy, Anatomy) else Anatomy(),
    )


def _failure(subject: _Subject, ending: Ending) -> ProgramError:
    if subject.best is None:
        return program_error(subject.program, ending)
    return ProgramError(
        f"{subject.program.name} fails under this config: {ending.reason}. "
        "Without --config it is measured as written.",
        ending.program_traceback,
    )
