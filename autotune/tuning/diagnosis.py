"""Diagnosis: name the baseline's bottleneck and derive the moves to try first; pure functions.

A move is a small set of knobs that usually helps with a bottleneck. Moves give the search a good
start; the sampler then explores around what they found.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum

from autotune.knobs.space.space import ResolvedSpace
from autotune.knobs.strategies import STRATEGIES
from autotune.machine.hardware import Hardware
from autotune.measurement.measurement import Measurement
from autotune.measurement.step_breakdown import StepBreakdown
from autotune.program.config import KnobValue
from autotune.program.profile import Profile

WORTH_A_WORD = 1.03  # with ready data; a smaller speedup is reported as "no faster"
# Share of the time that the program waits for data: above this, loading is the first suspect.
INPUT_BOUND_SHARE = 0.25
MAX_THREAD_MOVES = 5  # on machines with many cores the sampler tries the other counts
WAIT_IS_NOISE_SHARE = 0.03  # below, faster loading gains no more than the noise of a measurement


# Knob, value and the reason that users read. The order is the order in which they are tried.
COMPUTE_MOVES: tuple[tuple[str, KnobValue, str], ...] = (
    ("anomaly_detection", False, "searching for the origin of NaN slows down every operator"),
    ("deterministic_algorithms", False, "kernels that need not be bitwise reproducible are faster"),
    ("precision", "bf16", "bf16 halves memory traffic and uses faster units"),
    ("matmul_precision", "medium", "bf16 units multiply fp32 matrices faster"),
    ("channels_last", True, "convolution kernels prefer NHWC"),
    ("cudnn_benchmark", True, "cuDNN may know a faster algorithm for these shapes"),
    ("optimizer_implementation", "fused", "one fused kernel walks all parameters"),
    ("zero_grad_to_none", True, "dropping gradients is cheaper than writing zeros"),
    ("pin_memory", True, "copies to the device are faster from pinned memory"),
)


class Bottleneck(StrEnum):
    """What limits the baseline's speed.

    It decides whether loading or compute moves are tried first. Users read the values.
    """

    INPUT_BOUND = "input-bound"
    MIXED = "loading and computing share the time"
    COMPUTE_BOUND = "compute-bound"


class Family(StrEnum):
    """The part of the step, or of the machine, that a move changes.

    ``combinations()`` in ``proposals`` joins the best moves of different families.
    """

    LOADING = "loading"
    COMPUTE = "compute"
    BATCH = "batch"
    DEVICES = "devices"


@dataclass(frozen=True)
class Move:
    """Knobs that are changed together, and why.

    Attributes:
        family: What the move works on.
        changes: New values by knob, for the config that the move is applied to.
        why: The reason, as users read it next to the trial.
    """

    family: Family
    changes: Mapping[str, KnobValue]
    why: str


@dataclass(frozen=True)
class Diagnosis:
    """The bottleneck with its evidence, and the moves to try first.

    Attributes:
        verdict: What limits the baseline.
        evidence: What was measured to say so, as one sentence.
        moves: Moves that change neither devices nor ranks, most promising first.
        devices: Moves to several devices or ranks, each of which starts the program anew.
    """

    verdict: Bottleneck
    evidence: str
    moves: tuple[Move, ...]
    devices: tuple[Move, ...] = ()


def diagnose(
    profile: Profile,
    baseline: Measurement,
    space: ResolvedSpace,
    hardware: Hardware,
    breakdown: StepBreakdown = StepBreakdown(),  # noqa: B008 - a frozen value
) -> Diagnosis:
    """Return the baseline's bottleneck and the moves that follow from it.

    Only moves whose values the space offers are returned. A program without a DataLoader is never
    input-bound, because autotune cannot change how it loads.

    Args:
        profile: What the program's first steps revealed.
        baseline: The baseline's measurement; its share of waiting decides.
        space: What may be changed.
        hardware: Gives the cores that workers and compute threads share.
        breakdown: Where a step's time goes; adds evidence. Empty if it was not profiled.
    """
    share = baseline.wait_share
    if not profile.loaders or share < WAIT_IS_NOISE_SHARE:
        verdict = Bottleneck.COMPUTE_BOUND
    elif share >= INPUT_BOUND_SHARE:
        verdict = Bottleneck.INPUT_BOUND
    else:
        verdict = Bottleneck.MIXED
    evidence = "; ".join(_evidence(profile, baseline, breakdown))
    loading = [*_loading_moves(profile, space, hardware)]
    compute = [*_compute_moves(space)]
    batch = [*_batch_moves(space)]
    ordered = (
        [*loading, *compute, *batch]
        if verdict is Bottleneck.INPUT_BOUND
        else [*compute, *batch, *loading]
    )
    devices = tuple(_within(space, [*_device_moves(space, hardware, profile)]))
    return Diagnosis(verdict, evidence, tuple(_within(space, ordered)), devices)


def _evidence(profile: Profile, baseline: Measurement, breakdown: StepBreakdown) -> Iterator[str]:
    if not profile.loaders:
        yield "the program draws its batches itself, without a DataLoader"
    else:
        yield f"the program waits for data {baseline.wait_share:.0%} of the time"
    if breakdown.synthetic_data_throughput is not None and breakdown.loader_throughput is not None:
        now = baseline.throughput.estimate
        gain = breakdown.synthetic_data_throughput.estimate / now
        ready = f"run at {gain:.2f}x its speed" if gain > WORTH_A_WORD else "be no faster"
        yield (
            f"with its data always ready it would {ready}, and its loader alone delivers "
            f"{breakdown.loader_throughput.estimate / now:.2f}x the samples that it trains on now"
        )
    if breakdown.split is not None:
        split = breakdown.split
        parts = {n: s for n, s in split.parts.items() if n != "data wait"}
        largest = max(parts, key=lambda name: parts[name])
        yield f"{largest} takes {parts[largest] / split.step_s:.0%} of a step"


def _loading_moves(profile: Profile, space: ResolvedSpace, hardware: Hardware) -> Iterator[Move]:
    """Yield loader moves; on a CPU, workers and compute threads change together.

    Both take their cores from the same machine, so more workers alone would slow down the step.
    """
    if "num_workers" not in space.domains:
        return
    pins = {"pin_memory": True} if "pin_memory" in space.domains else {}
    cores = hardware.cpu_quota
    workers = [int(n) for n in space.domains["num_workers"].values if 0 < int(n) <= cores]
    favoured = [
        n for n in dict.fromkeys((max(workers, default=0), max(1, cores // 2))) if n in workers
    ]
    for count in favoured:
        if profile.device == "cpu" and "num_threads" in space.domains:
            threads = max(1, cores - count)
            yield Move(
                Family.LOADING,
                {"num_workers": count, "num_threads": threads},
                f"{count} workers load while {threads} of {cores} cores compute",
            )
        yield Move(
            Family.LOADING, {"num_workers": count, **pins}, f"{count} workers load during the step"
        )


def _compute_moves(space: ResolvedSpace) -> Iterator[Move]:
    for knob, value, why in COMPUTE_MOVES:
        if knob in space.domains and space.baseline[knob] != value:
            yield Move(Family.COMPUTE, {knob: value}, why)
    if "channels_last" in space.domains and "precision" in space.domains:
        yield Move(
            Family.COMPUTE,
            {"channels_last": True, "precision": "bf16"},
            "NHWC pays most in reduced precision",
        )
    if "num_threads" in space.domains:
        for threads in [*reversed(space.domains["num_threads"].values)][:MAX_THREAD_MOVES]:
            if threads != space.baseline["num_threads"]:
                yield Move(
                    Family.COMPUTE,
                    {"num_threads": threads},
                    f"operators may run faster on {threads} threads",
                )


def _batch_moves(space: ResolvedSpace) -> Iterator[Move]:
    if "batch_size" not in space.domains:
        return
    own = space.baseline["batch_size"]
    larger = [v for v in space.domains["batch_size"].values if v > own]  # type: ignore[operator]
    # Second, last, first: a clear step up, then the largest, then the smallest step
    for value in dict.fromkeys([*larger[1:2], *larger[-1:], *larger[:1]]):
        yield Move(
            Family.BATCH, {"batch_size": value}, "larger batches spread the cost of each step"
        )
    if larger and "activation_checkpointing" in space.domains:
        yield Move(
            Family.BATCH,
            {"batch_size": larger[-1], "activation_checkpointing": "all"},
            "blocks that recompute activations make room for the largest batch",
        )


def _device_moves(space: ResolvedSpace, hardware: Hardware, profile: Profile) -> Iterator[Move]:
    """Yield every strategy with each number of ranks, the most ranks first.

    On a CPU the ranks share the cores, so each gets an equal share of compute threads.
    """
    own = space.baseline.get("strategy", "ddp")
    strategies = space.domains["strategy"].values if "strategy" in space.domains else (own,)
    counts = space.domains["world_size"].values if "world_size" in space.domains else (1,)
    for count in sorted(map(int, counts), reverse=True):
        for strategy in strategies:
            has_ranks = STRATEGIES[str(strategy)].launches_ranks
            if strategy == own == "single" or (count > 1 and not has_ranks):
                continue
            changes: dict[str, KnobValue] = {"strategy": strategy, "world_size": count}
            if profile.device == "cpu" and has_ranks:
                share = max(1, hardware.cpu_quota // count)
                offered = [int(n) for n in _values(space, "num_threads") if int(n) <= share]
                changes["num_threads"] = max(offered, default=share)
            ranks = f"{count} ranks train" if count > 1 else "one rank trains"
            yield Move(
                Family.DEVICES,
                {k: v for k, v in changes.items() if k in space.baseline},
                f"{ranks} by {strategy}" if has_ranks else f"{strategy} uses all GPUs",
            )


def _within(space: ResolvedSpace, moves: list[Move]) -> Iterator[Move]:
    """Yield the moves whose values the space offers.

    A user can narrow the values of a knob or fix it, so not every move is allowed.
    """
    for move in moves:
        if all(value in _values(space, knob) for knob, value in move.changes.items()):
            yield move


def _values(space: ResolvedSpace, knob: str) -> tuple[KnobValue, ...]:
    if knob in space.domains:
        return space.domains[knob].values
    # A fixed knob has no domain; a move may still contain its one value.
    return (space.start[knob],) if knob in space.start else ()
