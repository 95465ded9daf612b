"""Readings: what came of a schedule of turns besides their seconds; None where there is none."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Memory:
    """Peak memory while a config was measured; None where nothing reports it.

    Attributes:
        device_allocated_bytes: torch's peak of live tensors on the fullest device.
        device_reserved_bytes: torch's peak of memory reserved from the fullest device.
        device_used_bytes: What all processes use of the fullest device, says its driver.
        device_process_bytes: The most that the rig's processes use of one, says its driver.
        alloc_retries: How often torch's allocator had to empty its cache, as if nearly full.
        host_bytes: Of the rig's process tree; shared pages count once if PSS can be read.
    """

    device_allocated_bytes: int | None = None
    device_reserved_bytes: int | None = None
    device_used_bytes: int | None = None
    device_process_bytes: int | None = None
    alloc_retries: int | None = None
    host_bytes: int | None = None

    @property
    def is_on_device(self) -> bool:
        """Whether torch used memory of a device."""
        return bool(self.device_reserved_bytes)

    @property
    def peak_bytes(self) -> int | None:
        """The peak on the device where one was used, else of the host; None if unknown."""
        return self.device_reserved_bytes if self.is_on_device else self.host_bytes

    @property
    def needed_bytes(self) -> int | None:
        """The peak without what torch only keeps for later, which grows evenly with the batch."""
        return self.device_allocated_bytes if self.is_on_device else self.host_bytes


@dataclass(frozen=True)
class Compilation:
    """What torch.compile did while turns were taken.

    Attributes:
        seconds: Time spent compiling, forward and backward.
        graphs: A model without graph breaks has one.
        recompiles: How often code was compiled again because a guard failed, as on a shape.
    """

    seconds: float
    graphs: int
    recompiles: int
    graph_breaks: int

    def __str__(self) -> str:
        counts = {"recompilation": self.recompiles, "graph break": self.graph_breaks}
        notes = [f"{n} {name}{'s' if n > 1 else ''}" for name, n in counts.items() if n]
        return ", ".join([f"compiled in {self.seconds:.0f}s", *notes])


@dataclass(frozen=True)
class RankLoad:
    """How one of several ranks spent a mean step of its turns.

    Attributes:
        wait_s: Part of ``step_s`` spent waiting for the next batch.
        communication_s: How long collectives were running, including the wait for other ranks. It
            is recorded in extra steps after the turns; None if that was not possible.
        queued_s: How long the thread that trains was ready to run and had no core, because others
            used it; recorded in the same steps.
    """

    rank: int
    step_s: float
    wait_s: float
    communication_s: float | None = None
    queued_s: float = 0.0

    @property
    def own_s(self) -> float | None:
        """Seconds of a step that the rank's work takes; None if unknown.

        Neither collectives nor waiting for a core belong to that: other programs on the machine
        would make a rank look slow that has no more to do than the others.
        """
        if self.communication_s is None:
            return None
        return max(0.0, self.step_s - self.communication_s - self.queued_s)


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
        """What disturbed the block, the most direct cause first."""
        has_quota = (self.throttled_share or 0.0) >= THROTTLED_SHARE
        quota = ("the container's CPU quota was used up",) if has_quota else ()
        return (*self.by_others, *quota)

    @property
    def by_others(self) -> tuple[str, ...]:
        """The same of others, who may come and go."""
        found = []
        # Without PSI nobody can tell whether a task waited, so foreign CPU time alone decides.
        somebody_waited = self.pressure_share is None or self.pressure_share >= PRESSURE_SHARE
        if (self.foreign_share or 0.0) >= FOREIGN_SHARE and somebody_waited:
            found.append("other programs used the CPU")
        if (self.steal_share or 0.0) >= STEAL_SHARE:
            found.append("the hypervisor took the CPU away")
        return (*found, *self.gpu)


@dataclass(frozen=True)
class GpuReading:
    """One reading of one GPU; None where the GPU does not report a value.

    Attributes:
        at_s: Time by ``time.monotonic()``, which all processes of a machine share.
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
