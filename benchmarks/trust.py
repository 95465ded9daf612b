"""How far claims can be trusted: confirmations of effects that are known.

    python -m benchmarks.trust [--pairs 40] [--claims 4]

(a) 40 pairs of equal configs: how often does the 95 % interval exclude 1? (b) A step with 3, 5, 10
and 30 % of extra work: how often does the interval hold the true ratio, and how far off is the
estimate? (c) The same while a process of our own keeps one core busy 30 % of the time. Every claim
is a whole confirmation, in fresh processes, as a search makes it.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from statistics import median
from time import monotonic

from autotune import hardware
from autotune.confirm import Confirmation, Contest, confirm
from autotune.objective import START_SILENCE_S
from autotune.outcome import Ending
from autotune.program import Program, parse_program
from autotune.rigs import Rigs
from autotune.setting import Setting
from autotune.space import ResolvedSpace
from autotune.spacefile import load
from benchmarks.record import save

PROGRAMS = Path(__file__).parent / "programs"
EFFECTS_PCT = (3, 5, 10, 30)
LONGEST_S = 75.0  # of one claim, so that a run of the benchmark ends in an hour
BURNED_SHARE = 0.3


@dataclass(frozen=True)
class Claim:
    """One confirmation of a config that does ``extra_pct`` more work than the other."""

    extra_pct: float
    estimate: float
    low: float
    high: float
    rounds: int
    measured_s: float
    wall_s: float
    discarded_blocks: int
    disturbed_share: float

    @property
    def truth(self) -> float:
        """The speedup that is to be found."""
        return 1 / (1 + self.extra_pct / 100)

    @property
    def holds_the_truth(self) -> bool:
        """The interval encloses it."""
        return self.low <= self.truth <= self.high

    @property
    def error_pct(self) -> float:
        """Distance of the estimate from it."""
        return 100 * abs(self.estimate / self.truth - 1)

    @property
    def excludes_one(self) -> bool:
        """The claim says that the configs differ."""
        return not self.low <= 1.0 <= self.high


def main() -> None:
    """Run the benchmark and keep its figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--pairs", type=int, default=40, help="Equal configs in (a).")
    parser.add_argument("--claims", type=int, default=4, help="Of each effect in (b) and (c).")
    options = parser.parse_args()
    effects = [effect for effect in EFFECTS_PCT for _ in range(options.claims)]
    quiet = [claim(effect) for effect in effects]
    print("quiet", _summary(quiet))
    with burning():
        disturbed = [claim(effect) for effect in effects]
    print("disturbed", _summary(disturbed))
    equal: list[Claim] = []
    with suppress(KeyboardInterrupt):  # what is done so far counts
        equal.extend(claim(0) for _ in range(options.pairs))
    false = sum(c.excludes_one for c in equal)
    print(f"equal configs: {false} of {len(equal)} intervals exclude 1")
    figures = {
        "equal": {
            "pairs": len(equal),
            "excluding_one": false,
            "share": false / len(equal),
            "median_half_width_pct": round(median(50 * (c.high - c.low) for c in equal), 3),
        },
        "quiet": _summary(quiet),
        "disturbed": _summary(disturbed),
        "claims": {
            name: [asdict(c) for c in claims]
            for name, claims in (("equal", equal), ("quiet", quiet), ("disturbed", disturbed))
        },
    }
    print(f"kept in {save('trust', figures)}")


def claim(extra_pct: float) -> Claim:
    """Confirm the slower config against the faster one, in fresh processes."""
    program = _program(extra_pct)
    space, base = _observed(extra_pct)
    began = monotonic()
    with tempfile.TemporaryDirectory() as folder, Rigs(program, Path(folder), MACHINE) as rigs:
        slower = base.config.replace(num_threads=1)
        contest = Contest(rigs, space, base, slower, _never)
        started = monotonic()
        outcome = confirm(
            contest, [], lambda _: None, lambda s: monotonic() - started + s < LONGEST_S
        )
    if isinstance(outcome, Ending):
        raise SystemExit(f"the confirmation failed: {outcome.reason}")
    made = _claim(extra_pct, outcome, monotonic() - began)
    print(
        f"{extra_pct:3} %: {made.estimate:.4f} [{made.low:.4f}, {made.high:.4f}], truth "
        f"{made.truth:.4f}, {made.rounds} rounds, measured {made.measured_s:.0f} s, "
        f"{made.discarded_blocks} blocks again, {made.disturbed_share:.0%} disturbed",
        flush=True,
    )
    return made


def _program(extra_pct: float) -> Program:
    return parse_program(str(PROGRAMS / "known_effect.py"), [str(extra_pct)])


@cache
def _observed(extra_pct: float) -> tuple[ResolvedSpace, Setting]:
    """What a first process reveals; every claim starts its own, so once is enough."""
    program = _program(extra_pct)
    with (
        tempfile.TemporaryDirectory() as folder,
        Rigs(program, Path(folder), MACHINE) as rigs,
        rigs.new() as rig,
    ):
        ready = rig.open(None, _never, START_SILENCE_S)
    if isinstance(ready, Ending):
        raise SystemExit(f"the program failed: {ready.reason}")
    space = load("default").resolve(MACHINE, ready.profile)
    return space, Setting.as_written(space.baseline, ready.profile)


@contextmanager
def burning() -> Iterator[None]:
    """Keep one core busy for a share of the time."""
    argv = [sys.executable, str(PROGRAMS / "burn.py"), str(BURNED_SHARE), "36000"]
    process = subprocess.Popen(argv)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _claim(extra_pct: float, confirmation: Confirmation, wall_s: float) -> Claim:
    windows = (*confirmation.baseline, *confirmation.winner)
    return Claim(
        extra_pct,
        confirmation.speedup.estimate,
        confirmation.speedup.low,
        confirmation.speedup.high,
        confirmation.rounds,
        measured_s=round(sum(b.seconds for w in windows for b in w.blocks), 2),
        wall_s=round(wall_s, 2),
        discarded_blocks=sum(w.discarded_blocks for w in windows),
        disturbed_share=sum(w.disturbed_share for w in windows) / len(windows),
    )


def _summary(claims: list[Claim]) -> dict[str, object]:
    fives = [c for c in claims if c.extra_pct == 5]
    return {
        "claims": len(claims),
        "holding_the_truth": sum(c.holds_the_truth for c in claims),
        "coverage": sum(c.holds_the_truth for c in claims) / len(claims),
        "median_error_pct": round(median(c.error_pct for c in claims), 3),
        "largest_error_pct": round(max(c.error_pct for c in claims), 3),
        "decided": {
            f"{effect} %": sum(c.excludes_one for c in claims if c.extra_pct == effect)
            for effect in EFFECTS_PCT
        },
        "median_measured_s_at_5_pct": median(c.measured_s for c in fives) if fives else None,
    }


def _never() -> Ending | None:
    return None


MACHINE = hardware.detect()

if __name__ == "__main__":
    main()
