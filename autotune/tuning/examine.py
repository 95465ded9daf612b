"""Examine a program as it is written, for ``autotune doctor``: its speed, its step, and more."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from autotune.knobs.space.spacefile import load
from autotune.machine.hardware import Hardware
from autotune.measurement.measurement import Measurement
from autotune.measurement.outcome import Ending
from autotune.program.applied_config import AppliedConfig
from autotune.program.fence_options import STRONGEST, FenceOptions
from autotune.program.program import Program
from autotune.results.doctor_report import DoctorReport
from autotune.rig.failures import program_error
from autotune.rig.open_rig import Reports, ShouldStop
from autotune.rig.rig import Rig
from autotune.tuning.budget import ENDING, InterruptCounter
from autotune.tuning.events import Events
from autotune.tuning.live_rig import STAGE_S, WARM_UP_S, LiveRig, longest_silence_s
from autotune.tuning.start import first_start
from autotune.tuning.start.observe import throwaway_rigs
from autotune.tuning.surroundings import THIS_MACHINE, Surroundings

PATIENCE_S = 90.0  # without a step; an item may take long
MORE_STAYS = 2  # of several ranks: a rank is slow if it is the slowest in all


def examine(
    program: Program,
    hardware: Hardware,
    events: Events,
    fence: FenceOptions = STRONGEST,
    surroundings: Surroundings = THIS_MACHINE,
) -> DoctorReport:
    """Run a program as it is written, behind a fence, and find out what slows it down.

    Raises:
        FenceError: when nothing keeps the program from changing the user's files.
        ProgramError: when the program fails or trains too few steps, or Ctrl-C ends its first
            measurement.
    """
    reports = Reports(events.on_progress, events.warn, events.note)
    with (
        InterruptCounter(lambda _: events.warn(ENDING)) as stop,
        throwaway_rigs(program, hardware, fence, reports, surroundings) as rigs,
    ):
        events.on_fence(rigs.fence)
        events.note("Observing the program.")
        started = first_start.observe(rigs, stop.ending)
        if isinstance(started, Ending):
            raise program_error(program, started)
        with started.rig:
            profile = started.ready.profile
            space = load("default").resolve(rigs.hardware, profile)
            written = AppliedConfig.as_written(space.baseline, profile)
            events.note("Measuring the program.")
            live = LiveRig.on(rigs, started.rig, written)
            stay = live.stay(written.config, stop.ending, WARM_UP_S, with_loads=True)
            if isinstance(stay, Ending):
                raise program_error(program, stay)
            measured = Measurement.of(stay.turns, stay.taken)
            report = DoctorReport(str(program), rigs.hardware, profile, measured)
            if profile.ranks.world_size > 1:
                return _with_loads(report, live, stop.ending)
            return _with_parts(report, started.rig, events, stop.ending)


def _with_loads(report: DoctorReport, live: LiveRig, should_stop: ShouldStop) -> DoctorReport:
    again: list[Measurement] = []
    live.expect_steps_of(report.measurement.step_s)
    for _ in range(MORE_STAYS):
        stay = live.stay(live.base.config, should_stop, with_loads=True)
        if isinstance(stay, Ending):
            break
        again.append(Measurement.of(stay.turns, stay.taken))
    note = "Several ranks train: their loads were compared, the rest was left out."
    return replace(report, again=tuple(again), notes=(note,))


def _with_parts(
    report: DoctorReport, rig: Rig, events: Events, should_stop: ShouldStop
) -> DoctorReport:
    patience_s = longest_silence_s(report.measurement.step_s, PATIENCE_S)
    events.note("Profiling a step.")
    breakdown = rig.profile_step(STAGE_S, should_stop, patience_s)
    if isinstance(breakdown, Ending):
        return replace(report, notes=(f"A step could not be profiled: {breakdown.reason}.",))
    report = replace(report, breakdown=breakdown)
    events.note("Watching what the program does.")
    examination = rig.examine(should_stop, patience_s)
    if isinstance(examination, Ending):
        return replace(report, notes=(f"The program could not be watched: {examination.reason}.",))
    report = replace(report, examination=examination)
    return replace(report, notes=tuple(_gaps(report)))


def _gaps(report: DoctorReport) -> Iterator[str]:
    if report.examination.growth is None:
        yield "The program made too few steps to see whether its memory grows."
    if report.examination.items is None and report.profile.loaders:
        yield (
            "Items of the data set were not loaded one by one: several loaders train, another "
            "thread reads the loader, or the data set refuses."
        )
