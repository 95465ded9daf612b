"""``autotune run``: the command that trains under a best.yaml."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from autotune.errors import UsageError
from autotune.knobs import launch_plan_for
from autotune.machine.hardware import Hardware
from autotune.program.program import LaunchPlan, Program, python_plan
from autotune.results.bestfile import BestFile


def run_plan(best: BestFile, path: Path, program: Program, machine: Hardware) -> LaunchPlan:
    """Return the plan of one process that trains under a best.yaml.

    Args:
        best: What the file holds.
        path: The file.
        program: What trains; its own ranks, where its line starts some, count.
        machine: This one.

    Raises:
        UsageError: when there are fewer GPUs than ranks.
    """
    plan = python_plan(
        "autotune.inside.train", str(path), *program.words, cwd=".", options=program.python_options
    )
    ranks = best.program.ranks if program.ranks is None else program.ranks
    plan = replace(plan, ranks=ranks).with_env(**program.env).with_env(AUTOTUNE_RUN="1")
    plan = launch_plan_for(best.setting, plan)
    gpus = len(machine.gpus)
    if best.program.device == "cuda" and plan.ranks is not None and 0 < gpus < plan.ranks:
        raise UsageError(
            f"{path} trains in {plan.ranks} ranks with a GPU each, and {gpus} are visible here. "
            "Search again on this machine, or lower 'world_size' in the file."
        )
    return plan
