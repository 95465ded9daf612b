"""Machines that share a search: what they claim together, and how much faster many of them are.

    python -m benchmarks.machines model [--claims 300]
    python -m benchmarks.machines searches [--searches 64] [--out FILE.jsonl]
    python -m benchmarks.machines replay [TABLE ...] [--members 1 2 4 ...] [--out FILE.jsonl]

``model`` draws processes of several machines without searching, and asks the claim. ``searches``
runs whole shared searches in virtual time, on the machine of ``benchmarks.claims``: one change
gives what the case says on the mean of all machines; on each of them, each config differs from that
by omega. Some members join late, some die. Told are claims of what is not faster on that mean, and
how often the interval holds the ratio of a machine that took no part. With ``--out`` it goes on
where it stood. ``replay`` lets many members search the recorded programs of ``benchmarks.replay``.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from statistics import NormalDist, fmean, median
from typing import Any

import numpy as np
from pydantic import TypeAdapter

from autotune.knobs import registry
from autotune.knobs.space.space import ResolvedSpace
from autotune.measurement.claim import claim, differing
from autotune.measurement.interval import Interval, LogRatio
from autotune.program.config import Config
from autotune.results.finding import Finding
from autotune.results.record import TrialRecord
from autotune.results.result import SearchResult
from autotune.tuning.budget import Budget
from autotune.tuning.events import Events
from benchmarks.claims import GAINS, KNOB, KNOBS, MIX, PROCESSES, VALUE
from benchmarks.record import save
from benchmarks.replay.world import ADAMW, FOLDER, Table, names, read, script_of, speedup
from tests.made import make_profile
from tests.scripted import Script
from tests.together import Part, search_together

WRITTEN: Mapping[str, Any] = {
    "workers": 0,
    "threads": 2,
    "precision": "fp32",
    "memory_format": "contiguous",
    "optimizer": "for-loop",
}
OMEGAS = (0.0, 0.01, 0.02, 0.03)
MEMBERS = (2, 4)
BUDGET_S, REPLAY_S = 90.0, 180.0
ERROR = 0.012  # of a process's log ratio, about as in searches of 90 s
GROWTH = 0.1  # of what processes differ by, with the logarithm of the ratio
LATE = DIES = 0.25  # shares of searches in which one member joins late, and in which one dies
GAPS = (0.0, 0.05, 0.1, 0.2)
NEAR_BEST = 0.98
MANY = (1, 2, 4, 8, 16, 32, 64)
REPLAYS = 12  # members of all searches of one table and number of members together, at least
REQUESTS_A_BEAT = 3  # its own beat is written, attributes and trials are read
BEAT_S = 10.0


@dataclass(frozen=True)
class Case:
    """What machines meet.

    Attributes:
        members: How many search.
        omega: Standard deviation of the logarithm of a config's speedup between machines.
        gain: Speedup of the one change, on the mean of all machines.
    """

    members: int
    omega: float
    gain: float


@dataclass
class OneOfMany(Script):
    """A machine on which each config's speed differs from that on others of its kind.

    Attributes:
        omega: Standard deviation of the logarithm of a config's speedup between machines.
        machine: Tells machines apart.
        written: Values of the program as written, whose speed is the same on all.
    """

    omega: float = 0.0
    machine: str = ""
    written: Mapping[str, Any] | None = None

    def rate(self, config: Config) -> float:
        """Return the true samples/s of a config on this machine."""
        return super().rate(config) * math.exp(self.omega * self.differs(config))

    def differs(self, config: Config) -> float:
        """Return by how much a config differs on this machine, in units of omega."""
        changes = sorted((k, str(v)) for k, v in config.items() if v != (self.written or {}).get(k))
        return random.Random(f"{self.machine} {changes}").gauss(0.0, 1.0) if changes else 0.0


@dataclass(frozen=True)
class Answer:
    """What one member ends with.

    Attributes:
        machines: Whose processes the claim rests on; of 1, it is for that machine alone.
        truth: Speedup of the candidate on the mean of all machines, or on that one; None where it
            was not compared in enough processes.
        low, high: Of its interval.
        holds: How likely the interval holds the ratio of a machine that took no part, or whether
            it holds that of this one.
        over_s: Seconds beyond the budget.
    """

    finding: str
    machines: int
    truth: float | None
    low: float
    high: float
    holds: float
    over_s: float

    @property
    def is_false(self) -> bool:
        """Whether it recommends what is not faster."""
        return self.finding == Finding.FASTER and self.truth is not None and self.truth <= 1.0


@dataclass(frozen=True)
class Shared:
    """One shared search.

    Attributes:
        answers: Of the members that did not die.
        announced: How many configs were announced.
    """

    case: Case
    seed: int
    answers: tuple[Answer, ...]
    announced: int

    @property
    def task(self) -> tuple[int, Case]:
        """What was asked for."""
        return self.seed, self.case

    @property
    def last(self) -> Answer | None:
        """The answer for another machine that rests on most processes; None without any."""
        found = [a for a in self.answers if a.machines > 1 and a.truth is not None]
        return max(found, key=lambda a: (a.machines, -math.log(a.high / a.low)), default=None)


def main() -> None:
    """Run one of the benchmarks and keep its figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parts = parser.add_subparsers(dest="part", required=True)
    of_model = parts.add_parser("model")
    of_model.add_argument("--claims", type=int, default=300, help="of each case")
    of_searches = parts.add_parser("searches")
    of_searches.add_argument("--searches", type=int, default=64, help="of each of 32 cases")
    of_replay = parts.add_parser("replay")
    of_replay.add_argument("tables", nargs="*", default=names(), metavar="TABLE")
    of_replay.add_argument("--members", nargs="*", type=int, default=list(MANY))
    for one in (of_searches, of_replay):
        one.add_argument("--out", type=Path, help="keeps each search, and goes on from there")
    options = parser.parse_args()
    # Forked processes would share the sampler's random numbers
    with get_context("spawn").Pool(PROCESSES) as pool:
        match options.part:
            case "model":
                figures = model(pool.imap, options.claims)
            case "searches":
                figures = searches(pool.imap_unordered, options.searches, options.out)
            case _:
                figures = replay(pool.imap_unordered, options.tables, options.members, options.out)
    print(f"kept in {save('machines', figures, part=options.part)}")


Mapper = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]


def model(each: Mapper, claims: int) -> dict[str, object]:
    """Return how claims do whose processes are drawn, by case and processes of a machine."""
    cells = [
        (Case(*one), processes, claims)
        for processes in (2, 3)
        for one in product(MEMBERS, OMEGAS, GAINS)
    ]
    figures: dict[str, object] = {"claims": claims}
    for (case, processes, _), found in zip(cells, each(drawn, cells), strict=True):
        name = f"{case.members} x {processes}, omega {case.omega}, {case.gain}x"
        figures[name] = found
        print(f"{name:30} {found}", flush=True)
    gaps = [(*one, claims) for one in product(MEMBERS, (2, 3, 4), GAPS)]
    for (members, processes, gap, _), share in zip(gaps, each(told_apart, gaps), strict=True):
        name = f"{members} x {processes}, one machine {gap:.0%} faster"
        figures[name] = {"differing": share}
        print(f"{name:30} {share}", flush=True)
    return figures


def told_apart(cell: tuple[int, int, float, int]) -> float:
    """Return how often machines are told apart: of so many processes each, one being faster."""
    members, processes, gap, times = cell
    rng, found = np.random.default_rng(0), 0
    for _ in range(times):
        spread = math.hypot(rng.choice(list(MIX), p=list(MIX.values())), ERROR)
        machines = [
            [LogRatio(at + spread * rng.standard_normal(), ERROR) for _ in range(processes)]
            for at in [math.log1p(gap), *[0.0] * (members - 1)]
        ]
        found += differing(machines)
    return round(found / times, 4)


def drawn(cell: tuple[Case, int, int]) -> dict[str, float]:
    """Return how claims of drawn processes do: of a case, with some processes of each machine."""
    case, processes, claims = cell
    rng, log = np.random.default_rng(0), math.log(case.gain)
    found = []
    for _ in range(claims):
        spread = math.hypot(rng.choice(list(MIX), p=list(MIX.values())), GROWTH * log, ERROR)
        machines = [
            [LogRatio(at + spread * rng.standard_normal(), ERROR) for _ in range(processes)]
            for at in log + case.omega * rng.standard_normal(case.members)
        ]
        found.append(claim(machines))
    return {
        "claims": round(fmean(one.is_faster for one in found), 4),
        "holds": round(fmean(holds(one.speedup, log, case.omega) for one in found), 4),
        "half_width_pct": round(median(50 * width(one.speedup) for one in found), 2),
    }


def holds(interval: Interval, log: float, omega: float) -> float:
    """Return how likely an interval holds the ratio of another machine."""
    if not omega:
        return float(interval.low <= math.exp(log) <= interval.high)
    others = NormalDist(log, omega)
    return others.cdf(math.log(interval.high)) - others.cdf(math.log(interval.low))


def width(interval: Interval) -> float:
    """Return the width of an interval, as a logarithm."""
    return math.log(interval.high / interval.low)


def searches(each: Mapper, count: int, out: Path | None) -> dict[str, object]:
    """Run shared searches and return how their claims do."""
    cases = [Case(*one) for one in product(MEMBERS, OMEGAS, GAINS)]
    found = gone_on(each, search, Shared, product(range(count), cases), out)
    figures: dict[str, object] = {"budget_s": BUDGET_S, "all": told("all", found)}
    for name, of in (
        *((f"{n} machines", [s for s in found if s.case.members == n]) for n in MEMBERS),
        *((f"omega {w}", [s for s in found if s.case.omega == w]) for w in OMEGAS),
        *((f"{g}x", [s for s in found if s.case.gain == g]) for g in GAINS),
        *(
            (f"{n} machines, omega {w}", [s for s in found if s.case == Case(n, w, s.case.gain)])
            for n, w in product(MEMBERS, OMEGAS)
        ),
        *(
            (f"{g}x, {n} machines", [s for s in found if (s.case.gain, s.case.members) == (g, n)])
            for g, n in product(GAINS, MEMBERS)
        ),
    ):
        figures[name] = told(name, of)
    return figures


def gone_on(each: Mapper, run: Any, kind: Any, tasks: Iterable[Any], out: Path | None) -> list[Any]:
    """Return what tasks come to, of which those in a file are not run again; it gets the others.

    Args:
        each: Runs tasks.
        run: What is done with a task.
        kind: What that returns, which knows its ``task``.
        tasks: All of them.
        out: The file; None keeps nothing.
    """
    lines = out.read_text(encoding="utf-8").splitlines() if out and out.exists() else []
    found = [TypeAdapter(kind).validate_json(line) for line in lines]
    made = {one.task for one in found}
    for one in each(run, [task for task in tasks if task not in made]):
        found.append(one)
        if out is not None:
            with out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(one)) + "\n")
    return found


def search(task: tuple[int, Case]) -> Shared:
    """Run one shared search in virtual time."""
    assert registry(), "the knobs are known before the search begins"
    seed, case = task
    dice = random.Random(f"{case} {seed}")
    spread = dice.choices([*MIX], [*MIX.values()])[0]
    joins_s = [dice.uniform(0.0, 5.0) for _ in range(case.members)]
    dies_s = [math.inf] * case.members
    if dice.random() < LATE:
        joins_s[-1] = dice.uniform(10.0, BUDGET_S)
    if dice.random() < DIES:
        dies_s[0] = dice.uniform(10.0, BUDGET_S)
    parts = [
        Part(
            script_in(case, spread, f"{case} {seed} {number}"),
            dice.randrange(2**31),
            joins_s[number],
            dies_s[number],
            budget_s=BUDGET_S,
        )
        for number in range(case.members)
    ]
    with tempfile.TemporaryDirectory() as folder:
        together = search_together(Path(folder), parts, KNOBS)
    answers = (
        answer(case, part.script, result)
        for part, result in zip(parts, together.results, strict=True)
        if result is not None
    )
    winners = [
        t for t in together.storage.get_all_trials(0) if t.user_attrs.get("kind") == "winner"
    ]
    announced = {trial.user_attrs["name"] for trial in winners}
    return Shared(case, seed, tuple(answers), len(announced))


def script_in(case: Case, spread: float, machine: str) -> OneOfMany:
    """Return one machine of a case, whose processes differ by a spread."""
    return OneOfMany(
        {KNOB: {VALUE: case.gain}},
        samples_per_s=1600.0,
        profile=make_profile(optimizers=(ADAMW,)),
        start_s=8.0,
        noise=0.07,
        ratio_noise=spread,
        ratio_growth=GROWTH,
        drift=0.1,
        omega=case.omega,
        machine=machine,
        written=WRITTEN,
    )


def answer(case: Case, script: Script, result: SearchResult) -> Answer:
    """Return what a member's result comes to."""
    assert isinstance(script, OneOfMany), "made by script_in"
    assert all(result.baseline[knob] == value for knob, value in WRITTEN.items())
    # where machines differ, what each claims is for itself
    machines, over_s = len(result.shared.pooled), result.seconds - BUDGET_S
    interval = result.candidate_speedup
    if result.candidate is None or not result.claim or result.unclaimed or interval is None:
        return Answer(result.finding, machines, None, 1.0, 1.0, 0.0, over_s)
    log, omega = math.log(Script.rate(script, result.candidate) / script.samples_per_s), case.omega
    if machines < 2:  # for itself
        log, omega = log + omega * script.differs(result.candidate), 0.0
    held = holds(interval, log, omega)
    bounds = (interval.low, interval.high)
    return Answer(result.finding, machines, math.exp(log), *bounds, held, over_s)


def told(name: str, found: Sequence[Shared]) -> dict[str, object]:
    """Print and return shares over shared searches."""
    shared = [one.last for one in found if one.last is not None]
    every = [a for one in found for a in one.answers]
    alone = [a for a in every if a.machines < 2 and a.truth is not None]
    figures: dict[str, object] = {
        "searches": len(found),
        "false_claims": _share([any(a.is_false for a in one.answers) for one in found]),
        "false_for_another": _share([one.last is not None and one.last.is_false for one in found]),
        "for_another": _share([one.last is not None for one in found]),
        "claims_for_another": _share(
            [one.last is not None and one.last.finding == Finding.FASTER for one in found]
        ),
        "holds_another": _share([a.holds for a in shared]),
        "half_width_pct": _median([50 * math.log(a.high / a.low) for a in shared]),
        "holds_this": _share([a.holds for a in alone]),
        "worst_seconds_over": round(max((a.over_s for a in every), default=0.0), 1),
    }
    print(f"{name:24} {figures}", flush=True)
    return figures


def _share(of: Sequence[float]) -> float | None:
    return round(fmean(of), 4) if of else None


def _median(of: Sequence[float]) -> float | None:
    return round(median(of), 2) if of else None


class Watch(Events):
    """Notes the true speed of what a member would recommend, as its race goes on.

    Attributes:
        seen: Seconds since the search began, and the speed as a share of the best config's.
    """

    def __init__(self, table: Table) -> None:
        self._table = table
        self._spent_s: Callable[[], float] = float
        self.seen: list[tuple[float, float]] = []

    def on_search_start(self, _head: object, _run: str, budget: Budget) -> None:
        """Take the clock of the search."""
        self._spent_s = lambda: budget.spent_s

    def on_rounds(self, best: Config, _speedup: float, _space: ResolvedSpace) -> None:
        """Note how fast the best config is."""
        self._note(best)

    def on_confirmation(self, candidate: TrialRecord, _space: ResolvedSpace) -> None:
        """Note how fast what is claimed is, which another member may have announced."""
        self._note(candidate.config)

    def _note(self, config: Config) -> None:
        share = (speedup(self._table, config) or 1.0) / self._table.best
        self.seen.append((self._spent_s(), share))

    def reached_s(self, share: float) -> float:
        """Return from when on what it would recommend was so fast; infinite if it never was."""
        late = [at_s for at_s, its in self.seen if its < share]
        after = [at_s for at_s, its in self.seen if its >= share and at_s > max(late, default=0.0)]
        return min(after, default=math.inf)


@dataclass(frozen=True)
class Replayed:
    """One shared search of a recorded program.

    Attributes:
        reached_s: Seconds until each member was near the best config.
        announced: Speed of what was claimed, as a share of the best one's; None if nothing was.
        writes_per_s: Entries that members wrote, a second.
        look_bytes: Bytes of the study's attributes at the end, which a look reads.
    """

    table: str
    members: int
    seed: int
    reached_s: tuple[float, ...]
    announced: float | None
    writes_per_s: float
    look_bytes: int

    @property
    def task(self) -> tuple[str, int, int]:
        """What was asked for."""
        return self.table, self.members, self.seed


def replay(
    each: Mapper, tables: Sequence[str], members: Sequence[int], out: Path | None
) -> dict[str, object]:
    """Let more and more members search recorded programs, and return what that gives and costs."""
    tasks = [
        (table, count, seed)
        for count in sorted(members)
        for table in tables
        for seed in range(math.ceil(REPLAYS / count))
    ]
    found = gone_on(each, replayed, Replayed, tasks, out)
    figures: dict[str, object] = {"budget_s": REPLAY_S, "tables": tables}
    for count in sorted(members):
        its = [one for one in found if one.members == count]
        seconds = sorted(min(at_s, REPLAY_S) for one in its for at_s in one.reached_s)
        requests = count * REQUESTS_A_BEAT / BEAT_S + fmean(one.writes_per_s for one in its)
        figures[f"{count} members"] = row = {
            "searches": len(its),
            "reached_s": round(median(seconds), 1),
            "reached": round(fmean(at_s < REPLAY_S for at_s in seconds), 3),
            "announced": _share([one.announced for one in its if one.announced is not None]),
            "requests_per_s": round(requests, 2),
            "look_kb": round(fmean(one.look_bytes for one in its) / 1000, 1),
        }
        print(f"{count:3} members  {row}", flush=True)
    return figures


def replayed(task: tuple[str, int, int]) -> Replayed:
    """Run one shared search of a recorded program in virtual time."""
    assert registry(), "the knobs are known before the search begins"
    name, members, seed = task
    table = read(FOLDER / f"{name}.json")
    watches = [Watch(table) for _ in range(members)]
    parts = [
        Part(script_of(table), 1000 * seed + number, budget_s=REPLAY_S, events=watch)
        for number, watch in enumerate(watches)
    ]
    with tempfile.TemporaryDirectory() as folder:
        together = search_together(Path(folder), parts, table.knobs)
    took_s = max(one.seconds for one in together.found)
    claimed = [one.candidate for one in together.found if one.candidate is not None]
    attributes = together.storage.get_study_user_attrs(0)
    entries = [name for name in attributes if name.startswith("result:")]
    return Replayed(
        *(name, members, seed),
        tuple(watch.reached_s(NEAR_BEST) for watch in watches),
        next(((speedup(table, config) or 1.0) / table.best for config in claimed), None),
        len(entries) / took_s,
        len(json.dumps(attributes)),
    )


if __name__ == "__main__":
    main()
