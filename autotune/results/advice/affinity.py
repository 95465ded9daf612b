"""Processes that may use fewer cores than the machine has for them."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.results.advice.base import MIN_WAIT, Advice, Gain, Readings

CALLS = (
    "Look for OMP_PROC_BIND, GOMP_CPU_AFFINITY, KMP_AFFINITY, taskset, or a call of "
    "os.sched_setaffinity"
)


def affinity(readings: Readings) -> Iterator[Advice]:
    """Say that the training process, or its workers together, are tied to few cores."""
    found = readings.examination.affinity
    if found is None:
        return
    allowed = len(found.allowed)
    computes_here = readings.profile.device == "cpu"
    waits = readings.measurement.wait_share >= MIN_WAIT
    # A program that computes on a GPU may bind itself to the cores next to it
    if len(found.main) < allowed and (computes_here or waits):
        most = allowed / len(found.main)
        yield Advice(
            "affinity: training process",
            f"The training process is tied to {_cores(len(found.main))} of {allowed}.",
            f"The kernel lets it run on {_listed(found.main)} only.",
            f"{CALLS}, and remove it.",
            gain=Gain(
                most if computes_here else min(most, readings.data_gain), "the number of cores"
            ),
            explains=("affinity: workers",),
        )
    used = {core for cores in found.workers for core in cores}
    wanted = min(len(found.workers), allowed)
    if found.workers and len(used) < wanted:
        yield Advice(
            "affinity: workers",
            f"The {len(found.workers)} workers of the loader share {_cores(len(used))}.",
            f"The kernel lets them run on {_listed(sorted(used))} only.",
            f"{CALLS}; a worker_init_fn can undo it: "
            "os.sched_setaffinity(0, range(os.cpu_count())).",
            gain=Gain(
                min(wanted / len(used), readings.data_gain),
                "the number of cores, at most as with data always ready",
            ),
        )


def _cores(count: int) -> str:
    return "one core" if count == 1 else f"{count} cores"


def _listed(cores: tuple[int, ...] | list[int]) -> str:
    return f"core {cores[0]}" if len(cores) == 1 else f"cores {', '.join(map(str, cores))}"
