"""Gradient probe: measure how noisy the program's gradients are, in a short process.

Only where the objective asks for it: watching gradients costs time and memory, so a process that is
measured never does.
"""

from __future__ import annotations

from dataclasses import replace

from autotune.knobs.space.space import ResolvedSpace
from autotune.measurement.gradient_noise import noise_scale
from autotune.measurement.interval import Interval
from autotune.program.applied_config import AppliedConfig
from autotune.program.rehearsal import RehearsalPlan, TracePlan
from autotune.tuning.session import Session

PARTS = 8  # batches at the same weights
STEPS = 24  # made of so many batches each
PROBE_S = 12.0  # besides the start of the process
LATE = 0.5  # share of the steps that counts: the first gradients of a training are the largest


def measure_noise(
    session: Session, applied: AppliedConfig, space: ResolvedSpace, startup_s: float
) -> tuple[Interval | None, str]:
    """Return the noise scale of the program's gradients in samples, or why it is not known.

    Args:
        session: Gives the rig and the time.
        applied: The program as written.
        space: Says whether its gradients can be accumulated.
        startup_s: Seconds until its first step.
    """
    own = applied.baseline
    if "accumulation_steps" not in own or "batch_size" not in own:
        reason = space.refused.get("accumulation_steps") or space.refused.get("batch_size")
        return None, reason or "its gradients cannot be accumulated"
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
