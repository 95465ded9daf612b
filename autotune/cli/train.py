"""``autotune run``: the plan of the process that trains with a best.yaml."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

from autotune.errors import UsageError
from autotune.knobs import launch_plan_for
from autotune.machine.hardware import Hardware
from autotune.program.program import LaunchPlan, Program, python_plan
from autotune.results.bestfile import BestFile
from autotune.rig.torchrun_plan import Nodes, with_ranks

EXPLAIN = ("-P", "-m", "autotune.inside.train", "--explain")  # of Python, before a best.yaml


def run_plan(best: BestFile, path: Path, program: Program, machine: Hardware) -> LaunchPlan:
    """Return the plan of the process that trains with a best.yaml.

    A file that changes nothing starts a script or a module as it is, without autotune in its
    process, unless it trains in several ranks.

    Args:
        best: The contents of the file.
        path: Path of the file.
        program: The program to train. If its command line starts ranks, their number overrides that
            of the file.
        machine: This machine.

    Raises:
        UsageError: There are fewer GPUs than ranks.
    """
    ranks = best.program.ranks if program.ranks is None else program.ranks
    own = program.own_plan if best.applied.is_as_written and ranks is None else None
    plan = own or python_plan(
        "autotune.inside.train", str(path), *program.words, cwd=".", options=program.python_options
    )
    # AUTOTUNE_RUN tells an autotune.apply() in the program that the config is applied already.
    plan = replace(plan, ranks=ranks).with_env(**program.env).with_env(AUTOTUNE_RUN="1")
    plan = launch_plan_for(best.applied, plan)
    gpus = len(machine.gpus)
    # With 0 GPUs nothing is known (NVML may not answer), so the program itself has to complain.
    if best.program.device == "cuda" and plan.ranks is not None and 0 < gpus < plan.ranks:
        raise UsageError(
            f"{path} trains in {plan.ranks} ranks with a GPU each, and {gpus} are visible here. "
            "Search again on this machine, or lower the number in 'devices' in the file."
        )
    return plan


def on_nodes(plan: LaunchPlan, path: Path, nodes: Nodes) -> LaunchPlan:
    """Return the plan that starts the ranks of a training on this machine.

    Args:
        plan: As ``run_plan`` gives it.
        path: Path of the best.yaml.
        nodes: The machines that train together.

    Raises:
        UsageError: One process would have to be shared among several machines.
    """
    if nodes.count > 1 and plan.ranks is None:
        raise UsageError(
            f"{path} trains in one process, which cannot be shared among {nodes.count} nodes. "
            "Search with --tune devices first."
        )
    return with_ranks(plan, nodes)


def plan_json(plan: LaunchPlan) -> str:
    """Return how a training is started, as JSON with stable keys."""
    data = {
        "command": plan.command,
        "argv": list(plan.argv),
        "env": dict(plan.env),
        "ranks": plan.ranks,
    }
    return json.dumps(data, indent=1)
