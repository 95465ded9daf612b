"""Executors: how ``--workers N`` starts one line on several machines, by what those already have.

One file is one member: ``local``, ``slurm``, ``ray``, ``command`` and ``kubernetes``, which only
renders a manifest. ``base.py`` says what each of them does.
"""

from __future__ import annotations

from autotune.cli.executors.base import Executor, Submission
from autotune.cli.executors.command import Command
from autotune.cli.executors.kubernetes import Kubernetes
from autotune.cli.executors.local import Local
from autotune.cli.executors.ray import Ray
from autotune.cli.executors.slurm import Slurm
from autotune.errors import named

__all__ = ["Executor", "Kubernetes", "Submission", "executor_of"]

MEMBERS: dict[str, type[Executor]] = {
    one.name: one for one in (Local, Slurm, Ray, Command, Kubernetes)
}


def executor_of(typed: str) -> Executor:
    """Return the executor that a user typed: its name, and what it takes behind it.

    For example ``slurm --partition=gpu --cpus-per-task=8``, or ``command 'qsub -b y {line}'``.

    Raises:
        UsageError: There is no such executor, or what follows its name is wrong.
    """
    name, _, options = typed.strip().partition(" ")
    return named("executor", name, MEMBERS)(options.strip())
