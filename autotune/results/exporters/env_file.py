"""Environment: the changes that variables can make, as lines for a shell."""

from __future__ import annotations

from dataclasses import replace
from shlex import quote

from autotune.knobs import launch_plan_for
from autotune.program.config import Config
from autotune.program.flags import AS_WRITTEN
from autotune.program.program import LaunchPlan
from autotune.results.bestfile import BestFile
from autotune.results.exporters.base import Export, Exporter, beyond_knobs, changes

THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS")
KEEPS_MEMORY = {"MALLOC_TRIM_THRESHOLD_": str(1 << 40), "MALLOC_MMAP_MAX_": "0"}  # glibc's


def variables(best: BestFile) -> dict[str, dict[str, str]]:
    """Return the variables that each changed knob sets; knobs that set none are left out.

    A knob that acts when a process starts says itself which they are. The number of threads and
    what malloc keeps, which autotune sets in the running process, have variables of OpenMP, MKL and
    glibc.
    """
    found: dict[str, dict[str, str]] = {}
    applied = best.applied
    for knob, value in changes(best).items():
        alone = replace(applied, config=Config({**applied.baseline, knob: value}))
        if knob == "threads":
            found[knob] = dict.fromkeys(THREADS, str(value))
        elif knob == "keep_freed_memory":
            found[knob] = dict(KEEPS_MEMORY)
        elif knob.startswith("$"):
            if value != AS_WRITTEN:
                found[knob] = {knob.removeprefix("$"): str(value)}
        elif own := dict(launch_plan_for(alone, LaunchPlan((), ".")).env):
            found[knob] = own
    return found


def all_variables(best: BestFile) -> dict[str, str]:
    """Return the variables of all changes together."""
    return {name: value for own in variables(best).values() for name, value in own.items()}


class EnvFile(Exporter):
    """Writes ``export NAME=value`` lines."""

    name = "env"
    file_name = "autotune.env"
    tool = "the environment"

    def export(self, best: BestFile) -> Export:
        """Return a line for each variable."""
        said = variables(best)
        lines = [f"export {name}={quote(value)}\n" for name, value in all_variables(best).items()]
        left_out = {
            f"{knob}={value}": "no environment variable sets it"
            for knob, value in changes(best).items()
            if knob not in said
        }
        return Export("".join(lines), left_out | beyond_knobs(best))
