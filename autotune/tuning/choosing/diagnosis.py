"""Diagnosis: name the baseline's bottleneck, and what usually helps there. Pure functions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from autotune.knobs.space.space import ResolvedSpace
from autotune.knobs.strategies import STRATEGIES
from autotune.machine.hardware import Hardware
from autotune.measurement.examination import LAUNCH_BOUND_SHARE, StepBreakdown
from autotune.measurement.goal import THROUGHPUT, Goal, Objective
from autotune.measurement.measurement import Measurement
from autotune.program.config import KnobValue
from autotune.program.domain import parts_of
from autotune.program.profile import Profile
from autotune.results.doctor_report import data_gain
from autotune.results.wording import percent

# Shares of the time that the program waits for data: from the first on, loading is the first
# suspect; from the second on, it is one of several
INPUT_BOUND_SHARE, PARTLY_SHARE = 0.25, 0.10
# How much larger a batch is usually faster: on a GPU, memory may not hold more
SURE_GROWTH, SURE_GROWTH_CPU = 2, 4
WAIT_IS_NOISE_SHARE = 0.03  # below, faster loading gains no more than the noise of a measurement


DEVICES = "devices"
REPLICAS = "data_parallel"  # of a program that divides its batches among devices itself

# What usually makes a step faster, the first of the values that is offered; the first needs
# hardware that computes in bf16
SURE: tuple[tuple[str, tuple[KnobValue, ...]], ...] = (
    ("precision", ("bf16", "tf32", "medium")),
    ("memory_format", ("channels_last",)),
    ("optimizer", ("fused",)),
    ("pinning", ("non-blocking",)),
)


PARTS = {
    "host to device": "Copying to the device",
    "compute": "Computing",
    "optimizer": "The optimizer",
    "sync calls": "Reading values",
    "Python and launch": "Python",
}


class Bottleneck(StrEnum):
    """What limits the baseline's speed.

    Users read the values.
    """

    INPUT_BOUND = "input-bound"
    PARTLY = "partly input-bound"
    LAUNCH_BOUND = "launch-bound"
    COMPUTE_BOUND = "compute-bound"


@dataclass(frozen=True)
class Move:
    """Knobs that are changed together, and why."""

    changes: Mapping[str, KnobValue]
    why: str


@dataclass(frozen=True)
class Diagnosis:
    """The bottleneck with its evidence, and what follows from it.

    Attributes:
        evidence: What was measured to say so: sentences, without the last full stop.
        short: The first of them as a clause, such as "waits for data 55 % of the time".
        shapes: How many shapes its batches have.
        devices: Moves to several devices or ranks, each of which starts the program anew.
        all_in: All changes at once of which it is known that they usually help here.
    """

    verdict: Bottleneck
    evidence: str
    short: str = ""
    shapes: int = 1
    devices: tuple[Move, ...] = ()
    all_in: Mapping[str, KnobValue] = field(default_factory=dict)


def diagnose(
    profile: Profile,
    baseline: Measurement,
    space: ResolvedSpace,
    hardware: Hardware,
    breakdown: StepBreakdown = StepBreakdown(),  # noqa: B008 - a frozen value
    goal: Goal = THROUGHPUT,
) -> Diagnosis:
    """Return the baseline's bottleneck and what follows from it.

    Only changes are returned whose values the space offers. A program without a DataLoader is never
    input-bound, because autotune cannot change how it loads.
    """
    verdict = _verdict(profile, baseline, breakdown)
    said = [*_evidence(verdict, profile, baseline, breakdown)]
    first = said[0].removeprefix("It ")
    all_in = dict(_sure(space, hardware, profile))
    if profile.loaders and _idle_share(baseline, breakdown) >= WAIT_IS_NOISE_SHARE:
        all_in |= _workers(profile, space, hardware)
    if goal.objective is Objective.MEMORY:
        all_in = {}
    if not goal.objective.counts_samples:
        all_in.pop("batch_size", None)
    devices = tuple(_device_moves(space, hardware, profile))
    shapes = 1 if breakdown.batches is None else breakdown.batches.shapes
    short = first[0].lower() + first[1:]
    return Diagnosis(verdict, ". ".join(said), short, shapes, devices, all_in)


def _verdict(profile: Profile, baseline: Measurement, breakdown: StepBreakdown) -> Bottleneck:
    waits = _idle_share(baseline, breakdown) if profile.loaders else 0.0
    calls = breakdown.launch_share
    if calls >= max(LAUNCH_BOUND_SHARE, waits):
        return Bottleneck.LAUNCH_BOUND
    if waits >= INPUT_BOUND_SHARE:
        return Bottleneck.INPUT_BOUND
    return Bottleneck.PARTLY if waits >= PARTLY_SHARE else Bottleneck.COMPUTE_BOUND


def _sure(
    space: ResolvedSpace, hardware: Hardware, profile: Profile
) -> Iterator[tuple[str, KnobValue]]:
    is_cpu = profile.device == "cpu"
    has_bf16 = hardware.supports_bf16_cpu if is_cpu else hardware.supports_bf16_gpu
    for knob, values in SURE:
        if knob not in space.domains or knob in space.restart:
            continue
        value = next((v for v in values if v in _values(space, knob)), space.baseline[knob])
        if value != space.baseline[knob] and (has_bf16 or knob != "precision"):
            yield knob, value
    if "batch_size" in space.domains and "batch_size" not in space.restart:
        own = int(space.baseline["batch_size"])
        most = SURE_GROWTH_CPU if is_cpu else SURE_GROWTH
        larger = [v for v in space.domains["batch_size"].values if own < int(v) <= most * own]
        if larger:
            yield "batch_size", larger[-1]


def _idle_share(baseline: Measurement, breakdown: StepBreakdown) -> float:
    """Return the share of the time in which nothing computes for want of data.

    Beside a GPU that is the device's: a host that runs ahead of it waits without losing time.
    """
    split = breakdown.split
    if split is None or split.launch_s is None:
        return baseline.wait_share
    return split.wait_s / split.step_s


def _evidence(
    verdict: Bottleneck, profile: Profile, baseline: Measurement, breakdown: StepBreakdown
) -> Iterator[str]:
    # Sentences about the program; the first one is the reason for the verdict
    computes, calls = _largest_part(breakdown), breakdown.launch_share
    if verdict is Bottleneck.LAUNCH_BOUND and breakdown.operators is not None:
        count = breakdown.operators.per_step
        yield f"Calling {count:,} small operators takes {percent(calls)} of a step"
    elif verdict is Bottleneck.COMPUTE_BOUND and computes:
        yield computes
    elif verdict is Bottleneck.COMPUTE_BOUND and profile.loaders:
        yield f"Computing takes {percent(1 - _idle_share(baseline, breakdown))} of the time"
    if profile.loaders:
        yield from _about_loading(verdict, profile, baseline, breakdown)
    else:
        yield "It draws its batches itself, without a DataLoader"
    if verdict in {Bottleneck.INPUT_BOUND, Bottleneck.PARTLY} and computes:
        yield computes
    batches = breakdown.batches
    if batches is not None and batches.shapes > 1:
        yield f"Its batches have {batches.shapes} shapes ({batches.count} were seen)"


def _largest_part(breakdown: StepBreakdown) -> str:
    if (split := breakdown.split) is None:
        return ""
    parts = {name: seconds for name, seconds in split.parts.items() if name != "data wait"}
    largest = max(parts, key=lambda name: parts[name])
    return f"{PARTS[largest]} takes {percent(parts[largest] / split.step_s)} of a step"


def _about_loading(
    verdict: Bottleneck, profile: Profile, baseline: Measurement, breakdown: StepBreakdown
) -> Iterator[str]:
    share = _idle_share(baseline, breakdown)
    yield f"It waits for data {percent(share)} of the time"
    if share < WAIT_IS_NOISE_SHARE or breakdown.synthetic_data_throughput is None:
        return
    gain = data_gain(profile, baseline, breakdown)
    if gain < 1 + WAIT_IS_NOISE_SHARE:
        yield "With its data always ready it would be no faster"
    else:
        first = "; so that is tried first" if verdict is Bottleneck.INPUT_BOUND else ""
        yield f"Faster loading can give at most {gain:.{1 if gain > 1.1 else 2}f}x{first}"


def _workers(profile: Profile, space: ResolvedSpace, hardware: Hardware) -> Mapping[str, KnobValue]:
    # On a CPU, compute threads get half of the cores; beside a GPU, one core launches its kernels.
    cores, is_cpu = hardware.cpu_quota // profile.ranks.world_size, profile.device == "cpu"
    most = max(1, cores // 2 if is_cpu else cores - 1)
    counts = [int(n) for n in _values(space, "workers") if 0 < int(n) <= most]
    if not counts:
        return {}
    found: dict[str, KnobValue] = {"workers": max(counts)}
    if is_cpu and (threads := max(1, cores - max(counts))) in _values(space, "threads"):
        found["threads"] = threads
    return found


def _device_moves(space: ResolvedSpace, hardware: Hardware, profile: Profile) -> Iterator[Move]:
    # On a CPU the ranks share the cores, so each gets an equal share of compute threads.
    values = space.domains[DEVICES].values if DEVICES in space.domains else ()
    own = space.baseline.get(DEVICES)
    ways = [value for value in values if value not in {own, "single"}]
    ways.sort(key=lambda value: -parts_of(value)[1])
    if own == REPLICAS and "single" in values:
        ways.insert(1, "single")  # compared with all devices, which come first
    for value in ways:
        strategy, count = parts_of(value)
        changes: dict[str, KnobValue] = {DEVICES: value}
        has_ranks = STRATEGIES[strategy].launches_ranks
        if profile.device == "cpu" and has_ranks and "threads" in space.baseline:
            share = max(1, hardware.cpu_quota // count)
            offered = [int(n) for n in _values(space, "threads") if int(n) <= share]
            changes["threads"] = max(offered, default=share)
        # A user can narrow the values of a knob or fix it, so not every move is allowed
        if not all(value in _values(space, knob) for knob, value in changes.items()):
            continue
        ranks = f"{count} ranks train" if count > 1 else "one rank trains"
        why = f"{ranks} by {strategy}" if has_ranks else f"{strategy} uses all GPUs"
        why = "one device trains" if strategy == "single" else why
        yield Move(changes, why)


def _values(space: ResolvedSpace, knob: str) -> tuple[KnobValue, ...]:
    if knob in space.domains:
        return space.domains[knob].values
    # A fixed knob has no domain; a move may still contain its one value.
    return (space.start[knob],) if knob in space.start else ()
