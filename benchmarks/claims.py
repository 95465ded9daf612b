"""How often whole searches claim what is not there, find what is, and hold the truth.

    python -m benchmarks.claims [--searches 2000] [--budget 90]

Runs searches in virtual time on the scripted machine of the tests: steps of 40 ms, turns that
scatter by 7 %, a pace that wanders by 10 %. One change gives what the case says, the others give
nothing. Equal processes differ in the speed of each config, by how much is not known: so searches
are dealt to three such spreads, and told for each and for their mix. The search knows none of this.
"""

from __future__ import annotations

import argparse
import math
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean, median

from autotune.knobs import registry
from autotune.program.config import KnobValue
from autotune.results.finding import Finding
from benchmarks.record import save
from benchmarks.replay.world import ADAMW
from tests.made import make_profile
from tests.scripted import Script, begin

KNOBS: Mapping[str, tuple[KnobValue, ...]] = {
    "workers": (0, 1, 2),
    "threads": (1, 2),
    "precision": ("fp32", "bf16"),
    "memory_format": ("contiguous", "channels_last"),
    "optimizer": ("for-loop", "fused"),
}
KNOB, VALUE = "memory_format", "channels_last"  # the one change that gives something
GAINS = (1.0, 1.05, 1.1, 1.3)
# Spread of each config's speed between processes, with its share in the mix. A ratio has two such
# configs, so it is spread by 1.4 times as much.
MIX = {0.005: 0.4, 0.013: 0.4, 0.03: 0.2}
PROCESSES = 2
SHOWN = {  # with what stands above the column
    "false_claims": "false",
    "claims": "claims",
    "claims_that_hold": "hold",
    "intervals_that_hold": "all hold",
    "half_width_pct": "± %",
    "right_change": "right",
    "and_no_other": "alone",
    "worst_seconds_over": "over s",
}


@dataclass(frozen=True)
class Case:
    """What one search meets."""

    gain: float
    spread: float
    budget_s: float


@dataclass(frozen=True)
class Searched:
    """What one search came to.

    Attributes:
        finding: What it said.
        truth: True speedup of the config that it proved, or tried to; None without a proof.
        low: Lower end of the interval of that speedup.
        high: Upper end.
        is_right: Whether it recommends the change that gives something.
        is_alone: Whether it recommends that and nothing else.
        over_s: Seconds beyond the budget.
    """

    finding: Finding
    truth: float | None
    low: float
    high: float
    is_right: bool
    is_alone: bool
    over_s: float

    @property
    def is_false(self) -> bool:
        """Whether it recommends a config that is not faster."""
        return self.finding is Finding.FASTER and self.truth is not None and self.truth <= 1.0

    @property
    def holds(self) -> bool:
        """Whether the interval holds the truth."""
        return self.truth is not None and self.low <= self.truth <= self.high


def main() -> None:
    """Run the benchmark and keep its figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--searches", type=int, default=2000, help="of each case")
    parser.add_argument("--budget", type=float, default=90.0, help="seconds of each search")
    options = parser.parse_args()
    figures: dict[str, object] = {"budget_s": options.budget, "searches": options.searches}
    print(" " * 12, *(f"{name:>8}" for name in SHOWN.values()))
    # Forked processes would share the sampler's random numbers
    with get_context("spawn").Pool(PROCESSES) as pool:
        for gain in GAINS:
            mix: list[Searched] = []
            for spread, share in MIX.items():
                case = Case(gain, spread, options.budget)
                tasks = [(case, seed) for seed in range(round(share * options.searches))]
                found = pool.starmap(search, tasks, chunksize=4)
                figures[f"{gain}x, spread {spread}"] = told(f"{gain}x {spread}", found)
                mix += found
            figures[f"{gain}x, mix"] = told(f"{gain}x mix", mix)
    print(f"kept in {save('claims', figures, part=f'{options.budget:g}s')}")


def search(case: Case, seed: int) -> Searched:
    """Run one search in virtual time."""
    assert registry(), "the knobs are known before the search begins"
    script = Script(
        {KNOB: {VALUE: case.gain}},
        samples_per_s=1600.0,
        profile=make_profile(optimizers=(ADAMW,)),
        start_s=8.0,
        noise=0.07,
        ratio_noise=case.spread,
        ratio_growth=0.1,
        drift=0.1,
    )
    with tempfile.TemporaryDirectory() as folder:
        result = begin(Path(folder), script, KNOBS, seed).go_on(case.budget_s)
    base = script.rate(result.baseline)
    is_proven = result.candidate is not None and result.claim and result.unclaimed is None
    speedup = result.candidate_speedup if is_proven else None
    config = result.candidate if speedup is not None else None
    return Searched(
        result.finding,
        None if config is None else script.rate(config) / base,
        1.0 if speedup is None else speedup.low,
        1.0 if speedup is None else speedup.high,
        result.changes.get(KNOB) == VALUE,
        dict(result.changes) == {KNOB: VALUE},
        result.seconds - case.budget_s,
    )


def told(name: str, found: Sequence[Searched]) -> dict[str, object]:
    """Print and return shares over searches."""
    claims = [one for one in found if one.finding is Finding.FASTER]
    proofs = [one for one in found if one.truth is not None]
    widths = [math.log(one.high / one.low) for one in proofs]
    figures: dict[str, object] = {
        "searches": len(found),
        "findings": dict(Counter(str(one.finding) for one in found)),
        "false_claims": _share([one.is_false for one in found]),
        "claims": round(len(claims) / len(found), 4),
        "claims_that_hold": _share([one.holds for one in claims]),
        "intervals_that_hold": _share([one.holds for one in proofs]),
        "half_width_pct": round(50 * median(widths), 2) if widths else None,
        "right_change": _share([one.is_right for one in found]),
        "and_no_other": _share([one.is_alone for one in found]),
        "worst_seconds_over": round(max(one.over_s for one in found), 1),
    }
    print(f"{name:12}", *(f"{figures[key]!s:>8}" for key in SHOWN), flush=True)
    return figures


def _share(of: Sequence[bool]) -> float | None:
    return round(fmean(of), 4) if of else None


if __name__ == "__main__":
    main()
