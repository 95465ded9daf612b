"""Interference: what took time from the program while a block was measured, and if it counts.

Covered: other processes, a hypervisor, CPU quotas, GPUs that are slowed down or shared.
Not covered: what leaves no trace in the kernel's or the driver's counters, such as a neighbour on
the same host that empties shared caches.
"""

from __future__ import annotations

from dataclasses import dataclass

# Counters of CPU time tick 100 times a second: on two cores one tick is 5 % of a block of 0.1 s.
# Measured there on an idle machine: foreign shares of at most one tick, pressure up to 0.07; with
# another process on one core 30 % of the time: one to three ticks, pressure of 0.15 to 0.22. What
# others do on cores that nobody waits for is no disturbance: a container sees its whole host's.
FOREIGN_SHARE = 0.06
PRESSURE_SHARE = 0.10
STEAL_SHARE = 0.08
THROTTLED_SHARE = 0.02


@dataclass(frozen=True)
class Interference:
    """Counters over one block; shares are of all cores' time, None where nothing reports them.

    Attributes:
        foreign_share: CPU time of processes that are not ours.
        steal_share: CPU time that the hypervisor gave to others.
        pressure_share: Share of the block in which some task, ours included, waited for a core
            (PSI, https://docs.kernel.org/accounting/psi.html).
        throttled_share: Share of the block in which the CPU quota of our cgroup was used up.
        switches_per_s: Involuntary context switches of the program.
        gpu: What disturbed a GPU, as words for the user.
    """

    foreign_share: float | None = None
    steal_share: float | None = None
    pressure_share: float | None = None
    throttled_share: float | None = None
    switches_per_s: float | None = None
    gpu: tuple[str, ...] = ()

    @property
    def reasons(self) -> tuple[str, ...]:
        """What disturbed the block, most direct first; empty for a clean one."""
        found = []
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
    """One look at one GPU.

    Attributes:
        at_s: When, by ``time.monotonic()``, which all processes of a machine share.
        slowdowns: Why the driver holds the clocks down, as words; a power limit that heavy work
            reaches by itself is not among them.
        foreign_processes: Ids of processes on this GPU that are not ours.
        energy_j: The GPU's energy counter.
    """

    at_s: float
    uuid: str
    sm_clock_mhz: int | None = None
    max_sm_clock_mhz: int | None = None
    slowdowns: tuple[str, ...] = ()
    temperature_c: int | None = None
    utilization_pct: int | None = None
    foreign_processes: tuple[int, ...] = ()
    energy_j: float | None = None

    @property
    def reasons(self) -> tuple[str, ...]:
        """What would disturb a block measured now."""
        shared = ("another process was on the GPU",) if self.foreign_processes else ()
        return (*(f"the GPU was slowed down ({reason})" for reason in self.slowdowns), *shared)
