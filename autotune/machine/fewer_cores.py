"""Fewer cores than this process could have, by mistake: what to add to the command to get them.

One core instead of 16 makes a training wait for its data, and looks like a slow file system. Most
often it is Slurm's: ``srun`` does not take over ``--cpus-per-task`` of ``sbatch`` (since 22.05), so
its step gets one core per task.

A limit that its user plainly meant is not warned of. Such is one that was typed for this very
command: Slurm's own variable names as many cores as may be used, or the parent process may use more
(taskset, numactl before autotune). A container has the limit that somebody typed; that is taken for
meant unless it has GPUs, and less than half of the cores that the machine has for each of its GPUs:
half, because people give out cores where the machine counts threads, of which a core has two.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from autotune.machine import cgroups
from autotune.machine.kernel_files import cpu_list, text_of

SYS = Path("/sys")
NVIDIA = "0x10de"
DISPLAYS = ("0x0300", "0x0302")  # PCI classes of GPUs, with and without a screen
CONTAINERS = ("/.dockerenv", "/run/.containerenv")
PER_NODE = re.compile(r"(\d+)(?:\(x(\d+)\))?")


@dataclass(frozen=True)
class CoreLimits:
    """What bounds the cores of this process.

    Attributes:
        allowed: Cores that it may use, with a quota as well.
        parents: Cores that its parent process may use; None if that cannot be seen.
        group: Cores of its control group, as the kernel lists them: ``0-15,32``; empty if not told.
        slurm_job: Cores of the control group of its Slurm job; None outside of one.
        gpus: NVIDIA GPUs in the machine, also those that a container does not see.
        environ: The environment, of which Slurm's variables count.
    """

    allowed: int
    machine: int
    parents: int | None = None
    group: str = ""
    slurm_job: int | None = None
    gpus: int = 0
    is_container: bool = False
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)

    def warning(self, gpus_used: int) -> str:
        """Return the sentence for the user; empty where nothing is amiss, or the limit is meant.

        Args:
            gpus_used: GPUs that this process sees.
        """
        return self._of_slurm() or self._of_a_binding() or self._of_a_container(gpus_used)

    def _of_slurm(self) -> str:
        due = self.slurm_job or 0
        if "SLURMD_NODENAME" in self.environ:  # the shell of salloc runs elsewhere
            number = self.environ.get("SLURM_NODEID", "")
            node = int(number) if number.isdecimal() else 0
            of_job = per_node(self.environ.get("SLURM_JOB_CPUS_PER_NODE", ""), node)
            tasks = per_node(self.environ.get("SLURM_STEP_TASKS_PER_NODE", ""), node) or 1
            due = (of_job or due) // tasks
        if self.environ.get("SLURM_CPUS_PER_TASK") == str(self.allowed):
            return ""
        threads = 2 if self.environ.get("SLURM_HINT") == "nomultithread" else 1
        if self.allowed * threads >= due:
            return ""
        return (
            f"This process may use {self.allowed} of the {due} cores that its Slurm job has for it "
            f"on this machine, because srun does not take over --cpus-per-task of sbatch: srun "
            f"--cpus-per-task={due}"
        )

    def _of_a_binding(self) -> str:
        has_more = len(cpu_list(self.group))
        is_typed_here = self.parents is None or self.parents > self.allowed
        if self.allowed >= has_more or is_typed_here or self.slurm_job is not None:
            return ""
        return (
            f"This process may use {self.allowed} of {has_more} cores: something that was started "
            f"before has bound it (taskset, numactl, mpirun). To use all: taskset -c {self.group} "
            "autotune …"
        )

    def _of_a_container(self, gpus_used: int) -> str:
        due = self.machine * min(gpus_used, self.gpus) // max(1, self.gpus)
        if not self.is_container or 2 * self.allowed >= due:
            return ""
        return (
            f"This container may use {self.allowed} of {self.machine} cores with {gpus_used} of "
            f"{self.gpus} GPUs, so that GPUs may wait for data: docker run --cpus={due}, or "
            f"--cpuset-cpus with as many (Kubernetes: resources.limits.cpu: {due})"
        )


def per_node(text: str, node: int) -> int | None:
    """Return the figure of a node in a list of Slurm's: ``16(x2),8`` is 16, 16 and 8.

    None for what is no such list. The last one stands for nodes beyond it.
    """
    found = list[int]()
    for part in text.split(","):
        match = PER_NODE.fullmatch(part.strip())
        if match is None:
            return None
        found += [int(match[1])] * int(match[2] or 1)
    return found[min(node, len(found) - 1)]


def read(sys: Path = SYS, proc: Path = cgroups.PROC) -> CoreLimits:
    """Return what bounds the cores of this process."""
    quota = cgroups.cpu_limit(proc)
    affinity = len(os.sched_getaffinity(0))
    sets = [(level.path, cpus) for level in cgroups.levels("cpuset", proc) if (cpus := _set(level))]
    jobs = [len(cpu_list(cpus)) for path, cpus in sets if re.fullmatch(r"job_\d+", path.name)]
    parents = None
    with suppress(OSError):
        parents = len(os.sched_getaffinity(os.getppid()))
    return CoreLimits(
        allowed=affinity if quota is None else max(1, min(affinity, int(quota))),
        machine=os.cpu_count() or 1,
        parents=parents,
        group=sets[0][1] if sets else text_of(sys / "devices/system/cpu/online").strip(),
        slurm_job=jobs[0] if jobs else None,
        gpus=_gpus(sys),
        is_container=any(Path(one).exists() for one in CONTAINERS) or "container" in os.environ,
        environ={name: text for name, text in os.environ.items() if name.startswith("SLURM")},
    )


def _set(level: cgroups.Level) -> str:
    v2 = ("cpuset.cpus.effective",)
    names = v2 if level.version == 2 else ("cpuset.effective_cpus", "cpuset.cpus")
    return next((text for name in names if (text := text_of(level.path / name).strip())), "")


def _gpus(sys: Path) -> int:
    """Return the NVIDIA GPUs on the PCI bus, which containers see whole."""
    devices = (sys / "bus/pci/devices").glob("*")
    return sum(
        text_of(one / "vendor").strip() == NVIDIA and text_of(one / "class").startswith(DISPLAYS)
        for one in devices
    )
