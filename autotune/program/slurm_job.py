"""The cores of a Slurm job, and the option by which ``srun`` gives them to what it starts.

Since Slurm 22.05 ``srun`` does not take ``--cpus-per-task`` from its job, and gives a task one core
without it (release notes: "srun will no longer read in SLURM_CPUS_PER_TASK"). So every line that
autotune prints has it, with the number: that variable is unset in a job without the option.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

GIVEN = re.compile(r"-c\d*|--cpus-per-task(=.*)?")
CORES = "--cpus-per-task"


def cores_of_job(variables: Mapping[str, str]) -> int | None:
    """Return the cores that a job has on its first node; None outside of one.

    SLURM_JOB_CPUS_PER_NODE lists them by node, as ``16(x2),8``.
    """
    found = re.match(r"\d+", variables.get("SLURM_JOB_CPUS_PER_NODE", ""))
    return int(found[0]) if found else None


def cores_option(variables: Mapping[str, str]) -> str:
    """Return ``--cpus-per-task=N`` with all cores of the job; with the letter outside of one."""
    return f"{CORES}={cores_of_job(variables) or 'N'}"


def names_cores(words: Sequence[str]) -> bool:
    """Return whether options of ``srun`` or ``sbatch`` say how many cores a task has."""
    return any(GIVEN.fullmatch(word) for word in words)
