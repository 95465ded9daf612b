"""Gradient probe: measure how noisy the program's gradients are, in a short process.

Only where the objective asks for it: watching gradients costs time and memory, so a process that is
measured never does.
"""

from __future__ import annotations

from dataclasses import replace

from autotune.knobs import Here, NotOffered, registry
from autotune.measurement.interval import Interval
from autotune.measurement.learning.gradient_noise import noise_scale
from autotune.program.applied_config import AppliedConfig
from autotune.program.config import Config
from autotune.program.profile import Profile
from autotune.program.rehearsal import RehearsalPlan, TracePlan
from autotune.tuning.session import Session

PARTS = 8  # batches at the same weights
STEPS = 200  # made of these, if they fit into its time
PROBE_S = 10.0  # besides the start of the process
LATE = 2 / 3  # of the steps is left out: the noise grows as a training goes on


def measure_noise(
    session: Session, profile: Profile, startup_s: float
) -> tuple[Interval | None, str]:
    """Return the noise scale of the program's gradients in samples, or why it is not known.

    Args:
        session: Gives the rig and the time.
        profile: What the program's first steps revealed.
        startup_s: Seconds until its first steps were observed.
    """
    head = session.study.head
    here, knob = Here(session.rigs.hardware, profile), registry()["accumulation_steps"]
    offered = knob.domain(here)
    if isinstance(offered, NotOffered) and offered.by_name is None:
        return None, offered.reason
    own = Config({"accumulation_steps": knob.current(profile)})
    applied = AppliedConfig.as_written(own, profile, head.options.lr_rule)
    config = own.replace(accumulation_steps=PARTS * int(own["accumulation_steps"]))
    plan = RehearsalPlan(
        batches=STEPS * int(config["accumulation_steps"]),
        epochs=1,
        enough_s=0.0,
        least_steps=STEPS,
        most_s=startup_s + PROBE_S,
        traces=TracePlan(steps=STEPS, drops_out=True, ends=True, gradients=True),
    )
    with session.rigs.new() as rig:
        ran = rig.rehearse(replace(applied, config=config), plan, session.until_over)
    if ran.has_failed or ran.seen is None or (trace := ran.seen.trace) is None:
        return None, ran.ending.reason if ran.ending is not None else "the probe was ended"
    late = trace.gradients[int(LATE * len(trace.gradients)) :]
    found = noise_scale(late)
    return found, "" if found is not None else trace.broken or "too few steps fit into its time"
