"""Interference: what took time from the program while a block was measured.

Covered: other processes, a hypervisor, CPU quotas, GPUs that are slowed down or shared.
Not covered: effects without a trace in the counters of the kernel or driver, such as a neighbour on
the same host that evicts shared caches.
"""

from __future__ import annotations

from dataclasses import dataclass

# Shares from which a block counts as disturbed. CPU time is counted in ticks of 1/100 s: on two
# cores, one tick is 5 % of a block of 0.1 s. Measured there on an idle machine: foreign shares of
# at most one tick, pressure up to 0.07. Measured with another process on one core 30 % of the time:
# one to three ticks, pressure of 0.15 to 0.22. Foreign work alone does not disturb a block: a
# container sees the use of its whole host, also of cores that none of its tasks waits for.
FOREIGN_SHARE = 0.06
PRESSURE_SHARE = 0.10
STEAL_SHARE = 0.08
THROTTLED_SHARE = 0.02


@dataclass(frozen=True)
class Interference:
    """The system's counters over one block; None where the system does not report a counter.

    Attributes:
        foreign_share: CPU time of processes that are not ours, as a share of all cores' time.
        steal_share: CPU time that the hypervisor gave to other guests, as a share of all cores'
            time.
        pressure_share: Share of the block in which some task, ours included, waited for a core
            (PSI, https://docs.kernel.org/accounting/psi.html).
        throttled_share: Share of the block in which the CPU quota of our cgroup was used up.
        gpu: What disturbed a GPU, as clauses for the user.
    """

    foreign_share: float | None = None
    steal_share: float | None = None
    pressure_share: float | None = None
    throttled_share: float | None = None
    gpu: tuple[str, ...] = ()

    @property
    def reasons(self) -> tuple[str, ...]:
        """What disturbed the block, the most direct cause first; empty for an undisturbed block."""
        found = []
        # Without PSI nobody can tell whether a task waited, so foreign CPU time alone decides.
        somebody_waited = self.pressure_share is None or self.pressure_share >= PRESSURE_SHARE
        if (self.foreign_share or 0.0) >= FOREIGN_SHARE and somebody_waited:
            found.append("other processes used the CPU")
        if (self.steal_share or 0.0) >= STEAL_SHARE:
            found.append("the hypervisor took the CPU away")
        if (self.throttled_share or 0.0) >= THROTTLED_SHARE:
            found.append("the container's CPU quota was used up")
        return (*found, *self.gpu)


@dataclass(frozen=True)
class GpuReading:
    """One reading of one GPU; None where the GPU does not report a value.

    Attributes:
        at_s: Time by ``time.monotonic()``, which all processes of a machine share.
        uuid: The GPU's NVML id.
        slowdowns: Why the driver lowers the clocks, in words. A power limit that heavy work reaches
            on its own is not among them.
        foreign_processes: Ids of processes that are not ours and took this GPU's time.
        energy_j: The GPU's energy counter, which only grows; differences are meaningful.
    """

    at_s: float
    uuid: str
    slowdowns: tuple[str, ...] = ()
    temperature_c: int | None = None
    foreign_processes: tuple[int, ...] = ()
    energy_j: float | None = None

    @property
    def reasons(self) -> tuple[str, ...]:
        """What would disturb a block measured at this moment, as clauses for the user."""
        shared = ("another process was on the GPU",) if self.foreign_processes else ()
        return (*(f"the GPU was slowed down ({reason})" for reason in self.slowdowns), *shared)
