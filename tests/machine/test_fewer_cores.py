"""Fewer cores than a job, a machine or a container has: warned of with what to type, or meant."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.machine.fewer_cores import CoreLimits, per_node, read
from tests.machine.test_cgroups import tree, write

NODE = {"SLURMD_NODENAME": "n1", "SLURM_JOB_ID": "7", "SLURM_NODEID": "0"}
STEP = {**NODE, "SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_JOB_CPUS_PER_NODE": "16"}
# The name of a case: what bounds the process, GPUs that it sees, and what is to be typed; empty
# where the limit is meant, or there is none
CASES: dict[str, tuple[CoreLimits, int, str]] = {
    # Slurm 22.05 and later: #SBATCH --cpus-per-task=16, then a bare srun
    "a step without its job's cores": (
        CoreLimits(1, 64, 1, environ={**STEP, "SLURM_CPUS_PER_TASK": "16"}),
        1,
        "srun --cpus-per-task=16",
    ),
    "a step of a job with -n1 and --exclusive": (
        CoreLimits(1, 64, 64, environ={**STEP, "SLURM_JOB_CPUS_PER_NODE": "64"}),
        1,
        "srun --cpus-per-task=64",
    ),
    "the third of three unequal nodes": (
        CoreLimits(
            1, 64, environ={**STEP, "SLURM_NODEID": "2", "SLURM_JOB_CPUS_PER_NODE": "16(x2),8"}
        ),
        0,
        "srun --cpus-per-task=8",
    ),
    "two tasks share the node": (
        CoreLimits(1, 64, environ={**STEP, "SLURM_STEP_TASKS_PER_NODE": "2(x2)"}),
        0,
        "srun --cpus-per-task=8",
    ),
    "variables that a container dropped, but its job's group shows": (
        CoreLimits(1, 64, 1, group="3", slurm_job=16),
        1,
        "srun --cpus-per-task=16",
    ),
    "srun --cpus-per-task=4 was typed": (
        CoreLimits(4, 64, environ={**STEP, "SLURM_CPUS_PER_TASK": "4"}),
        1,
        "",
    ),
    "a step with all cores": (CoreLimits(16, 64, environ=STEP), 1, ""),
    "one thread of each core, as --hint says": (
        CoreLimits(8, 64, environ={**STEP, "SLURM_HINT": "nomultithread"}),
        1,
        "",
    ),
    "a batch script": (
        CoreLimits(16, 64, environ={**NODE, "SLURM_JOB_CPUS_PER_NODE": "16"}),
        1,
        "",
    ),
    "the shell of salloc on a login node": (
        CoreLimits(4, 4, 4, "0-3", environ={"SLURM_JOB_CPUS_PER_NODE": "16", "SLURM_JOB_ID": "7"}),
        0,
        "",
    ),
    "a list that another version writes": (
        CoreLimits(1, 64, environ={**STEP, "SLURM_JOB_CPUS_PER_NODE": "sixteen"}),
        0,
        "",
    ),
    # a shell that mpirun, an IDE or taskset has bound to a core
    "a binding that the shell has as well": (
        CoreLimits(1, 16, 1, "0-15"),
        0,
        "taskset -c 0-15 autotune",
    ),
    "taskset on this very line": (CoreLimits(4, 16, 16, "0-15"), 0, ""),
    "a machine with all its cores": (CoreLimits(16, 16, 16, "0-15"), 8, ""),
    # docker run --gpus device=0 on a machine with 8 GPUs
    "a container with one of eight GPUs and one core": (
        CoreLimits(1, 96, 1, "5", gpus=8, is_container=True),
        1,
        "docker run --cpus=12",
    ),
    "a container with its share for one thread of each core": (
        CoreLimits(6, 96, 6, "0-5", gpus=8, is_container=True),
        1,
        "",
    ),
    "a container without GPUs": (CoreLimits(2, 96, 2, "0-1", is_container=True), 0, ""),
    "a container that sees no GPU of the machine": (
        CoreLimits(2, 96, 2, "0-1", gpus=8, is_container=True),
        0,
        "",
    ),
}


def test_each_recorded_case_is_warned_of_with_what_to_type_or_taken_for_meant() -> None:
    for name, (limits, gpus, typed) in CASES.items():
        said = limits.warning(gpus)
        assert bool(said) is bool(typed), (name, said)
        assert typed in said, (name, said)


def test_lists_of_slurm_are_read() -> None:
    assert [per_node("16(x2),8", node) for node in range(4)] == [16, 16, 8, 8]
    assert [per_node(text, 0) for text in ("", "16(2)", "a")] == [None] * 3


def test_limits_are_read_from_the_groups_and_the_bus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    proc = tree(
        tmp_path / "place",
        "0::/system.slice/slurmstepd.scope/job_7/step_0/user\n",
        "/ cg cgroup2 rw",
        {
            "cg/system.slice/slurmstepd.scope/job_7/cpuset.cpus.effective": "0-15\n",
            "cg/system.slice/slurmstepd.scope/job_7/step_0/user/cpuset.cpus.effective": "0\n",
            "cg/system.slice/slurmstepd.scope/job_7/step_0/user/cpu.max": "100000 100000\n",
        },
    )
    pci = "sys/bus/pci/devices/0000:0"
    write(
        tmp_path,
        {
            f"{pci}1/vendor": "0x10de\n",
            f"{pci}1/class": "0x030200\n",
            f"{pci}2/vendor": "0x10de\n",
            f"{pci}2/class": "0x040300\n",  # its sound
            f"{pci}3/vendor": "0x8086\n",
            f"{pci}3/class": "0x030000\n",
            "sys/devices/system/cpu/online": "0-63\n",
        },
    )
    monkeypatch.setenv("SLURM_HINT", "nomultithread")
    found = read(tmp_path / "sys", proc)
    assert (found.allowed, found.group, found.slurm_job, found.gpus) == (1, "0", 16, 1)
    assert found.environ["SLURM_HINT"] == "nomultithread"
    assert read(tmp_path / "sys", tmp_path / "nothing").group == "0-63"


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="one core cannot be left out")
def test_a_bound_shell_is_warned_of_and_a_bound_command_is_not() -> None:
    one = min(os.sched_getaffinity(0))
    says = "from autotune.machine import fewer_cores; print(fewer_cores.read().warning(0))"
    line = [sys.executable, "-c", says]
    for binds, is_warned in ((["taskset", "-c", str(one)], False), ([], False)):
        said = subprocess.run([*binds, *line], capture_output=True, text=True, check=True).stdout
        assert bool(said.strip()) is is_warned
    shell = ["taskset", "-c", str(one), "sh", "-c", '"$@"; exit $?', "sh", *line]
    said = subprocess.run(shell, capture_output=True, text=True, check=True).stdout
    assert "To use all: taskset -c " in said
