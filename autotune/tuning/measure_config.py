"""Measure one config carefully in a few fresh processes, without searching.

This is what ``autotune measure`` runs. There is no baseline to compare with: see ``noise_floor``
for how much two measurements of one config differ.
"""

from __future__ import annotations

from dataclasses import replace

from autotune.errors import ProgramError
from autotune.knobs.space.spacefile import load
from autotune.machine.hardware import Hardware
from autotune.measurement.measurement import Measurement
from autotune.measurement.outcome import Ending, Outcome
from autotune.measurement.step_breakdown import StepBreakdown
from autotune.program.applied_config import AppliedConfig
from autotune.program.fence_options import STRONGEST, FenceOptions
from autotune.program.profile import Profile
from autotune.program.program import Program
from autotune.results.bestfile import BestFile
from autotune.results.measure_report import MeasureReport
from autotune.results.wording import format_duration
from autotune.rig.failures import program_error
from autotune.rig.open_rig import Reports
from autotune.rig.rig_factory import RigFactory
from autotune.tuning.events import Events
from autotune.tuning.interrupts import ENDING, InterruptCounter
from autotune.tuning.live_rig import LiveRig
from autotune.tuning.start import first_start
from autotune.tuning.start.first_start import START_SILENCE_S
from autotune.tuning.start.observe import throwaway_rigs
from autotune.tuning.surroundings import THIS_MACHINE, Surroundings

STAGE_S = 2.0  # of the profile of a step


def measure_config(
    program: Program,
    best: BestFile | None,
    hardware: Hardware,
    processes: int,
    events: Events,
    fence: FenceOptions = STRONGEST,
    surroundings: Surroundings = THIS_MACHINE,
) -> MeasureReport:
    """Measure a program as written, or under a best.yaml.

    Args:
        program: The program.
        best: The config to run it under; None leaves it as written.
        hardware: This machine.
        processes: How many fresh processes are measured, one after another.
        events: Told what happens.
        fence: What the user requested of the fence.
        surroundings: Clock, rigs and machine check.

    Returns:
        A report with one measurement per process. Its step breakdown is of the first process alone.

    Raises:
        ProgramError: when the program fails or trains too few steps, or Ctrl-C ends the
            first process.
        FenceError: when nothing keeps the program from changing the user's files.
    """
    warnings = [*surroundings.look(hardware)]
    if best is not None:
        warnings += best.warnings(hardware, program)
    for warning in warnings:
        events.warn(warning)
    found: list[MeasureReport] = []
    reports = Reports(events.on_progress, events.warn, events.note)
    with (
        InterruptCounter(lambda _: events.warn(ENDING)) as stop,
        throwaway_rigs(program, hardware, fence, reports, surroundings) as rigs,
    ):
        events.on_fence(rigs.fence)
        began_s = surroundings.clock()
        for number in range(1, processes + 1):
            usual = ""
            if found:
                each_s = (surroundings.clock() - began_s) / len(found)
                usual = f", about {format_duration(each_s)}"
            events.on_phase(f"process {number} of {processes}{usual}")
            subject = _Subject(rigs, program, best, stop)
            try:
                found.append(_one(subject, is_first=not found))
            except ProgramError:
                if not (found and stop.requests):
                    raise
            if stop.requests:  # the earlier processes count, also where this one was cut short
                break
    measurements = tuple(m for facts in found for m in facts.measurements)
    return replace(found[0], measurements=measurements, machine_warnings=tuple(warnings))


class _Subject:
    """The program and config that are measured, with the rigs to run them on.

    It groups what every process of one ``measure_config()`` call needs.
    """

    def __init__(
        self,
        rigs: RigFactory,
        program: Program,
        best: BestFile | None,
        stop: InterruptCounter,
    ) -> None:
        self.rigs, self.program, self.best = rigs, program, best
        self._stop = stop

    def should_stop(self) -> Ending | None:
        """Return an Ending once the user has pressed Ctrl-C; None until then.

        There is no budget: a process is measured for a few seconds.
        """
        if self._stop.requests:
            return Ending(Outcome.INTERRUPTED, "stopped by Ctrl-C")
        return None

    def applied(self, profile: Profile) -> AppliedConfig:
        """Return the config to measure: that of best.yaml, or the program as written.

        For the program as written it can only be made from *profile*, after the program has
        started.
        """
        if self.best is not None:
            return self.best.applied
        space = load("default").resolve(self.rigs.hardware, profile)
        return AppliedConfig.as_written(space.baseline, profile)


def _one(subject: _Subject, *, is_first: bool) -> MeasureReport:
    """Measure one fresh process; in the first one, also profile the step.

    Raises:
        ProgramError: when the program fails, ends before it was measured, or Ctrl-C ended it.
    """
    should_stop = subject.should_stop
    best = None if subject.best is None else subject.best.applied
    started = first_start.observe(subject.rigs, should_stop, START_SILENCE_S, best)
    if isinstance(started, Ending):
        raise _failure(subject, started)
    with started:
        rig, profile = started.rig, started.ready.profile
        applied = subject.applied(profile)
        with LiveRig.on(subject.rigs, rig, applied) as live:
            stay = live.alone(applied.config, should_stop)
            if isinstance(stay, Ending):
                raise _failure(subject, stay)
            measurement = Measurement.of(stay.turns, stay.taken)
            breakdown = StepBreakdown()
            if is_first and live.is_open:
                live.expect_steps_of(measurement.step_s)
                breakdown = live.profile_step(STAGE_S, should_stop)
    return MeasureReport(
        str(subject.program),
        applied.config,
        subject.rigs.hardware,
        profile,
        (measurement,),
        breakdown,
    )


def _failure(subject: _Subject, ending: Ending) -> ProgramError:
    if subject.best is None:
        return program_error(subject.program, ending)
    return ProgramError(
        f"{subject.program.name} fails under this config: {ending.reason}. "
        "Without --config it is measured as written.",
        ending.program_traceback,
    )
