"""Bounds: what a knob can gain at most, from the share of the time that it works on.

A knob that only changes how the optimizer walks the parameters cannot save more than the
optimizer's time (operational analysis, as in Plumber, MLSys 2022). Only such knobs have a bound
here: the batch size, the precision or the number of threads change everything.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

from autotune.measurement.examination import StepBreakdown
from autotune.measurement.goal import THROUGHPUT, Goal
from autotune.measurement.measurement import Measurement

WORTH_TRYING = 1.03  # a knob that can gain less is not tried
MARGIN = 1.5  # on shares, which a few profiled steps show
MOST_SHARE = 0.9

OPTIMIZER = ("optimizer",)
TRANSFER = ("pinning",)
LOADING = (
    "workers",
    "prefetch_factor",
    "in_order",
    "worker_start_method",
    "worker_threads",
)


@dataclass(frozen=True)
class Share:
    """The share of the baseline's time that a knob works on.

    Attributes:
        share: At most this part of the time can be saved, 0 to 1.
        what: What takes that time, for the user.
    """

    share: float
    what: str

    def most(self, speedup: float = 1.0) -> float:
        """Return the speedup that the knob can give at most.

        Args:
            speedup: Of the config that the knob is added to. What the knob works on stays, so its
                share of the time grows as the rest gets faster.
        """
        return 1 / (1 - min(MOST_SHARE, MARGIN * self.share * max(1.0, speedup)))


def bounded(
    shares: Mapping[str, Share], speedup: float = 1.0, asked: Collection[str] = ()
) -> dict[str, Share]:
    """Return the knobs that can gain next to nothing, with their shares of the time."""
    return {
        knob: share
        for knob, share in shares.items()
        if knob not in asked and share.most(speedup) < WORTH_TRYING
    }


def sentences(knobs: Mapping[str, Share], speedup: float = 1.0) -> list[str]:
    """Return why knobs are not tried, for the user: those that work on the same thing together."""
    together: dict[Share, list[str]] = {}
    for knob, share in knobs.items():
        together.setdefault(share, []).append(knob)
    return [
        f"{', '.join(names)} (can give at most {share.most(speedup):.2f}x here: {share.what} takes "
        f"{share.share:.0%} of the time)"
        for share, names in together.items()
    ]


def shares(
    breakdown: StepBreakdown, baseline: Measurement, goal: Goal = THROUGHPUT
) -> Mapping[str, Share]:
    """Return, by knob, the share of the time that it works on."""
    return dict(_shares(breakdown, baseline)) if goal.objective.is_speed else {}


def _shares(breakdown: StepBreakdown, baseline: Measurement) -> Iterator[tuple[str, Share]]:
    split, ready = breakdown.split, breakdown.synthetic_data_throughput
    if split is None:
        return
    optimizer = Share(split.optimizer_s / split.step_s, "the optimizer")
    yield from ((knob, optimizer) for knob in OPTIMIZER)
    transfer = Share((split.transfer_s + split.wait_s) / split.step_s, "copying to the device")
    yield from ((knob, transfer) for knob in TRANSFER)
    if ready is not None:  # all that loading costs, the cores that it takes included
        saved = 1 - baseline.throughput.low / ready.high
        loading = Share(max(baseline.wait_share, saved, 0.0), "loading data")
        yield from ((knob, loading) for knob in LOADING)
