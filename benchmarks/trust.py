"""How far claims can be trusted: confirmations of effects that are known.

    python -m benchmarks.trust [--live 40,10] [--confirmed 20,2]

(a) Pairs of equal configs: how often does the 95 % interval exclude 1? (b) A step with 3, 5, 10
and 30 % of extra work: how often does the interval hold the true ratio, and how far off is the
estimate? (c) The same while a process of our own keeps one core busy 30 % of the time.

A *live* claim is what a search prints for a trial: windows in turn in a running program. A
*confirmed* one is what it reports in the end, in fresh processes; it takes a minute.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from statistics import median
from time import monotonic

from autotune.knobs.space.space import ResolvedSpace
from autotune.knobs.space.spacefile import load
from autotune.machine import hardware
from autotune.measurement.interval import Interval
from autotune.measurement.measurement import Measurement
from autotune.measurement.outcome import Ending
from autotune.program.applied_config import AppliedConfig
from autotune.program.program import Program, parse_program
from autotune.rig.rig_factory import RigFactory
from autotune.tuning.confirming.confirm import ConfirmationPlan, Failure, confirm
from autotune.tuning.start.first_start import START_SILENCE_S
from autotune.tuning.trial_runner import TrialRunner
from benchmarks.record import save

Claims = Callable[[float, int], "list[Claim]"]
PROGRAMS = Path(__file__).parent / "programs"
EFFECTS_PCT = (3, 5, 10, 30)
LONGEST_S = 75.0  # of one claim, so that a run of the benchmark ends in an hour
BURNED_SHARE = 0.3


@dataclass(frozen=True)
class Claim:
    """A claim on a config that does ``extra_pct`` more work than the other.

    Attributes:
        rounds: Fresh processes, or turns in one.
        measured_s: Time in windows, both configs'; None where only the last is kept.
        wall_s: Time that the claim took in all.
    """

    extra_pct: float
    estimate: float
    low: float
    high: float
    rounds: int
    measured_s: float | None
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
    counts = "Claims on equal configs, and on each effect; 0,0 for none."
    parser.add_argument("--live", type=_counts, default=(40, 10), help=counts)
    parser.add_argument("--confirmed", type=_counts, default=(20, 2), help=counts)
    options = parser.parse_args()
    figures = {}
    if any(options.live):
        figures["live"] = _all(live_claims, *options.live)
    if any(options.confirmed):
        figures["confirmed"] = _all(confirmed_claims, *options.confirmed)
    print(f"kept in {save('trust', figures)}")


def _counts(text: str) -> tuple[int, int]:
    pairs, each = text.split(",")
    return int(pairs), int(each)


def _all(make: Claims, pairs: int, each: int) -> dict[str, object]:
    """Cases (a), (b) and (c) with one way of making claims."""
    equal = make(0, pairs)
    quiet = [claim for effect in EFFECTS_PCT for claim in make(effect, each)]
    with burning():
        disturbed = [claim for effect in EFFECTS_PCT for claim in make(effect, each)]
    false = sum(c.excludes_one for c in equal)
    summary: dict[str, object] = {
        "equal": {
            "pairs": len(equal),
            "excluding_one": false,
            "share": false / len(equal),
            "median_half_width_pct": round(median(50 * (c.high - c.low) for c in equal), 3),
        },
        "quiet": _summary(quiet),
        "disturbed": _summary(disturbed),
    }
    print(summary, flush=True)
    cases = {"equal": equal, "quiet": quiet, "disturbed": disturbed}
    return {**summary, "claims": {name: [asdict(c) for c in made] for name, made in cases.items()}}


def live_claims(extra_pct: float, count: int) -> list[Claim]:
    """Compare the two configs in one running program, as the trials of a search."""
    claims = []
    space, base = _observed(extra_pct)
    slower = base.config.replace(num_threads=1)
    with (
        tempfile.TemporaryDirectory() as folder,
        RigFactory(_program(extra_pct), Path(folder), MACHINE) as rigs,
        TrialRunner(rigs) as trial_runner,
    ):
        ready = trial_runner.observe(_never)
        if isinstance(ready, Ending):
            raise SystemExit(f"the program failed: {ready.reason}")
        trial_runner.set_up(space, base)
        trial_runner.baseline(_never)
        for _ in range(count):
            record = trial_runner(slower, "benchmark", _never, None)
            if record.measurement is None or record.speedup is None:
                raise SystemExit(f"the program failed: {record.ending}")
            turns, windows = len(record.visits), [record.measurement]
            claims.append(_claim(extra_pct, record.speedup, turns, windows, record.cost_s))
    return claims


def confirmed_claims(extra_pct: float, count: int) -> list[Claim]:
    """Confirm as a search does, so many times."""
    return [confirmed_claim(extra_pct) for _ in range(count)]


def confirmed_claim(extra_pct: float) -> Claim:
    """Confirm the slower config against the faster one, in fresh processes."""
    program = _program(extra_pct)
    space, base = _observed(extra_pct)
    began = monotonic()
    with (
        tempfile.TemporaryDirectory() as folder,
        RigFactory(program, Path(folder), MACHINE) as rigs,
    ):
        slower = base.config.replace(num_threads=1)
        contest = ConfirmationPlan(rigs, space, base, slower, _never)
        started = monotonic()

        def has_time_for(seconds: float, *, is_needed: bool) -> bool:  # noqa: ARG001
            return monotonic() - started + seconds < LONGEST_S

        outcome = confirm(contest, [], lambda _: None, has_time_for)
    if isinstance(outcome, Failure):
        raise SystemExit(f"the confirmation failed: {outcome.ending.reason}")
    windows = [*outcome.baseline, *outcome.winner]
    return _claim(extra_pct, outcome.speedup, outcome.rounds, windows, monotonic() - began)


def _program(extra_pct: float) -> Program:
    return parse_program(str(PROGRAMS / "known_effect.py"), [str(extra_pct)])


@cache
def _observed(extra_pct: float) -> tuple[ResolvedSpace, AppliedConfig]:
    """What a first process reveals; every claim starts its own, so once is enough."""
    program = _program(extra_pct)
    with (
        tempfile.TemporaryDirectory() as folder,
        RigFactory(program, Path(folder), MACHINE) as rigs,
        rigs.new() as rig,
    ):
        ready = rig.open(None, _never, START_SILENCE_S)
    if isinstance(ready, Ending):
        raise SystemExit(f"the program failed: {ready.reason}")
    space = load("default").resolve(MACHINE, ready.profile)
    return space, AppliedConfig.as_written(space.baseline, ready.profile)


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


def _claim(
    extra_pct: float, ratio: Interval, rounds: int, windows: list[Measurement], wall_s: float
) -> Claim:
    is_whole = len(windows) > 1
    made = Claim(
        extra_pct,
        round(ratio.estimate, 5),
        round(ratio.low, 5),
        round(ratio.high, 5),
        rounds,
        measured_s=sum(b.seconds for w in windows for b in w.blocks) if is_whole else None,
        wall_s=round(wall_s, 2),
        discarded_blocks=sum(w.discarded_blocks for w in windows),
        disturbed_share=round(sum(w.disturbed_share for w in windows) / len(windows), 3),
    )
    print(
        f"{extra_pct:3} %: {made.estimate:.4f} [{made.low:.4f}, {made.high:.4f}], truth "
        f"{made.truth:.4f}, {made.rounds} rounds, {made.wall_s:.1f} s, "
        f"{made.discarded_blocks} blocks again, {made.disturbed_share:.0%} disturbed",
        flush=True,
    )
    return made


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
        "median_wall_s_at_5_pct": round(median(c.wall_s for c in fives), 1),
        "measured_s_at_5_pct": [round(c.measured_s, 1) for c in fives if c.measured_s],
    }


def _never() -> Ending | None:
    return None


MACHINE = hardware.detect()

if __name__ == "__main__":
    main()
