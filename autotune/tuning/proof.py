"""The proof: fresh processes in which the program as written and the winner take turns.

The best of many measurements looks better than it is, because luck helped to make it the best (the
winner's curse). So the race only selects the candidate, and the claim rests on turns that came
after. Processes of one program differ by several percent for as long as they live, so both configs
share each process; one begins as the program is written, the next as the winner. Ratios differ
between processes, too, which ``measurement.claim`` allows for.

Where the two cannot share a process, a pair of processes is compared, one of each.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import fmean, median
from typing import NamedTuple

from autotune.knobs.space.space import KEEPS, ResolvedSpace
from autotune.measurement.claim import (
    LEAST_MACHINES,
    LEAST_PROCESSES,
    LOADING_TAU,
    Claim,
    claim,
    differing,
    least_processes,
)
from autotune.measurement.gate import Gate
from autotune.measurement.goal import THROUGHPUT, Goal, Objective
from autotune.measurement.interval import NORMAL, Interval, LogRatio
from autotune.measurement.measurement import Measurement
from autotune.measurement.outcome import ENDED_BY_US, Ending, Outcome
from autotune.measurement.page_faults import PageFaults
from autotune.measurement.rounds import TAU, speeds
from autotune.measurement.turn import Played, played, rate
from autotune.program.applied_config import AppliedConfig
from autotune.program.config import Config
from autotune.results.blame import is_of_device
from autotune.results.record import ClaimProcess
from autotune.rig.open_rig import ShouldStop
from autotune.rig.rig_factory import RigFactory
from autotune.tuning.live_rig import ALONE_S, MAX_STARTS, PLAY_S, WARM_UP_S, LiveRig, over_limit
from autotune.tuning.plan import PAIRS, PROCESSES, TURNS

SECOND_S = 0.5  # of the config that comes second
MOST_TURNS_S = 20.0  # of turns in each process
LEAST_ROUNDS = 4  # with which a process counts
MOST_TOLD = 60  # rounds of a process that its record tells one by one: what people look at
# By how much others may slow the program as written down against its first measurement. On 2 cores,
# two scripts that ran at once made digits_cnn 40 times slower with 2 threads, and not with 1: this
# was claimed as 21x
SWAMPED = 2.0
Machines = Mapping[str, Sequence[ClaimProcess]]
Pair = tuple[Played, Played]  # what the program as written and the winner played in one round


@dataclass(frozen=True)
class Failure:
    """Why a process has no result."""

    is_of_winner: bool
    ending: Ending


@dataclass(frozen=True)
class OtherProgram:
    """A candidate that is another program, such as the script at another commit."""

    rigs: RigFactory
    space: ResolvedSpace
    applied: AppliedConfig


@dataclass(frozen=True)
class Match:
    """The two configs to compare.

    Attributes:
        base: The program as written, or the first of two configs.
        factor: Share of the winner's time that is left besides compiling, where that counts.
        other: The candidate, where it is another program.
        faults: What is known of the page faults of configs that return their memory.
        usual_rate: Samples per second of the program as written before; None if not known.
        announcement: Name of the one by which several machines compare the two; empty if none do.
        elsewhere: Returns the processes of the other machines, by machine.
    """

    rigs: RigFactory
    space: ResolvedSpace
    base: AppliedConfig
    winner: Config
    should_stop: ShouldStop
    goal: Goal = THROUGHPUT
    factor: float = 1.0
    other: OtherProgram | None = None
    faults: PageFaults = field(default_factory=PageFaults)
    usual_rate: float | None = None
    announcement: str = ""
    elsewhere: Callable[[], Machines] = dict

    def read(self, processes: Sequence[ClaimProcess]) -> Confirmation | None:
        """Return what processes of this machine and of others amount to; None without any here.

        Until there are enough of others, and where machines surely differ, these count alone. Where
        nobody knows how fast the program usually is, pairs of processes do not count if something
        else took the machine from one: a load that comes and goes looks like a difference.
        """
        if self.usual_rate is None and self.is_apart:
            return _undisturbed(processes, self.tau)
        machines = [processes, *self.elsewhere().values()] if processes else []
        ratios = [[one.ratio for one in its] for its in machines]
        fresh = sum(fresh_of(its) >= LEAST_PROCESSES for its in machines)
        if fresh < LEAST_MACHINES or self.differs(processes):
            return read(processes, self.tau)
        found = claim(ratios, tau=self.tau, apart=self.is_apart)
        elsewhere = {host: tuple(its) for host, its in self.elsewhere().items()}
        return Confirmation(
            *(found.speedup, found.chance, found.is_enough, tuple(processes), elsewhere),
            sure=found.sure,
            machines=found.machines,
        )

    def differs(self, processes: Sequence[ClaimProcess]) -> bool:
        """Return whether machines surely differ, with these processes as those of this one."""
        machines = (processes, *self.elsewhere().values())
        ratios = [[one.ratio for one in its] for its in machines]
        return differing(ratios, tau=self.tau, apart=self.is_apart)

    def is_over(self, confirmation: Confirmation | None) -> bool:
        """Whether further processes are of no use; those of other machines may still come."""
        is_whole = not self.announcement or confirmation is None or confirmation.machines > 1
        return is_whole and confirmation is not None and confirmation.is_over

    @property
    def is_apart(self) -> bool:
        """Whether the two cannot take turns in one process."""
        is_memory = self.goal.objective is Objective.MEMORY  # each process holds that of both
        restarts = self.space.needs_restart(self.base.config, self.winner)
        return is_memory or self.other is not None or restarts

    @property
    def tau(self) -> float:
        """By how much ratios of the two are assumed to differ between processes."""
        changes = self.winner.changes_from(self.base.config).keys()
        return LOADING_TAU if changes & {"workers", "threads"} else TAU

    def work(self, growth: float) -> float:
        """Return the factor on the winner's work, where samples are not what is compared.

        In a program that makes a fixed number of steps, a larger batch adds samples without saving
        steps. Another program is compared by samples, as nobody knows how much it has to do.
        """
        if self.other is not None or not self.goal.objective.counts_samples:
            return self.factor
        return self.factor / self.base.extra_work(self.winner, growth)

    def swamped(self, own: Sequence[Played]) -> Ending | None:
        """Return why what was played on a busy machine does not count; None if it does."""
        rate = sum(one.samples for one in own) / (sum(one.seconds for one in own) or 1.0)
        if not own or self.usual_rate is None or SWAMPED * rate > self.usual_rate:
            return None
        return Ending(
            Outcome.UNCLEAR,
            f"other programs slowed yours down from {self.usual_rate:,.0f} to {rate:,.0f} "
            "samples/s; search again when the machine is idle",
        )

    @property
    def configs(self) -> tuple[Config, Config]:
        """The two configs, the first one's first."""
        return self.base.config, self.winner

    def live(self, *, winner: bool = False) -> LiveRig:
        """Return what runs one of the two."""
        if winner and self.other is not None:
            return LiveRig(self.other.rigs).set_up(self.other.space, self.other.applied)
        live = LiveRig(self.rigs).set_up(self.space, self.base)
        live.faults = self.faults
        return live

    def failure(self, ending: Ending, *, of_winner: bool) -> Failure:
        """Return why a process has no result; the rigs learn from it how to run the program."""
        self.rigs.learn(ending, as_written=not of_winner)
        is_nobodys = ending.outcome in {*ENDED_BY_US, Outcome.RAN_OUT}
        return Failure(is_of_winner=of_winner and not is_nobodys, ending=ending)


@dataclass(frozen=True)
class Confirmation(Claim):
    """The comparison of one candidate with the program as written, from fresh processes.

    Attributes:
        processes: Those of this machine.
        elsewhere: Those of other machines that count as well, by machine.
        dropped: Those that do not count, as something else took the machine meanwhile. Where none
            counts, *processes* are the same.
    """

    processes: tuple[ClaimProcess, ...]
    elsewhere: Machines = field(default_factory=dict)
    dropped: tuple[ClaimProcess, ...] = ()

    @property
    def is_apart(self) -> bool:
        """Whether each of the two had its own process."""
        return self.processes[0].is_pair

    @property
    def lack(self) -> str:
        """Why there is no claim yet, for the user; empty if there were enough processes."""
        if self.is_enough:
            return ""
        of_each = " of each config" if self.is_apart else ""
        count = fresh_of([one for one in self.processes if one not in self.dropped])
        verbs = ("counts", "count") if self.dropped else ("was measured", "were measured")
        return (
            f"a claim needs {least_processes(apart=self.is_apart)} fresh processes{of_each}, and "
            f"only {count} {verbs[count != 1]}"
        )

    @property
    def rates(self) -> tuple[Interval, Interval]:
        """Samples per second of both: median and range of the processes."""
        before, after = zip(*(one.rates for one in self.processes), strict=True)
        first, second = (Interval(median(of), min(of), max(of)) for of in (before, after))
        return first, second

    @property
    def alone(self) -> tuple[tuple[Measurement, ...], tuple[Measurement, ...]]:
        """What each of the two did alone, by process."""
        written = (one.baseline for one in self.processes)
        winner = (one.winner for one in self.processes)
        return tuple(filter(None, written)), tuple(filter(None, winner))


def read(processes: Sequence[ClaimProcess], tau: float) -> Confirmation | None:
    """Return what recorded processes of this machine amount to; None without any."""
    if not processes:
        return None
    apart = processes[0].is_pair
    found = claim([[one.ratio for one in processes]], tau=tau, apart=apart)
    is_enough = fresh_of(processes) >= least_processes(apart=apart)
    return Confirmation(found.speedup, found.chance, is_enough, tuple(processes), sure=found.sure)


def _undisturbed(processes: Sequence[ClaimProcess], tau: float) -> Confirmation | None:
    counted = [one for one in processes if not any(m.is_taken_from for m in one.alone)]
    found = read(counted or processes, tau)
    dropped = tuple(one for one in processes if one not in counted)
    is_enough = found is not None and found.is_enough and bool(counted)
    return found and replace(found, is_enough=is_enough, dropped=dropped)


def fresh_of(processes: Sequence[ClaimProcess]) -> int:
    """Return how many processes were started for the claim."""
    return sum(not one.is_of_search for one in processes)


class ProcessTime(NamedTuple):
    """Seconds of a fresh process: until its turns begin, and of these, at least."""

    until_turns_s: float
    turns_s: float = TURNS.seconds


def prove(
    match: Match,
    earlier: Sequence[ClaimProcess],
    keep: Callable[[ClaimProcess], None],
    time_left_s: Callable[[int], float],
    takes: ProcessTime,
    gate: Gate | None = None,
) -> Confirmation | Failure:
    """Run fresh processes until the claim is sure, has become unlikely, or time is up.

    Their number follows from the time alone, so that looking costs nothing: as many as fit by what
    those before took, up to a few. For a gate, as many as fit, until its verdict is sure.

    Returns:
        A failure if the winner's process failed: a config that fails in a fresh process is not
        recommended, however fast it was. Or if something else ended the first process.
    """
    processes, seen_s = [*earlier], list[float]()
    least, most = least_processes(apart=match.is_apart), max(PROCESSES)
    besides_s, turns_s = takes.until_turns_s, takes.turns_s
    if match.is_apart:
        most, besides_s, turns_s = max(PAIRS), 2 * (takes.until_turns_s + ALONE_S), 0.0
    if gate is not None:
        most = sys.maxsize
    fresh, repeats = fresh_of(processes), False
    _see_page_faults(match, starts_as_written=fresh % 2 == 0)
    while fresh < most:
        confirmation = match.read(processes)
        left_s = time_left_s(fresh)
        if _is_over(match, gate, confirmation):
            break
        if left_s < (besides_s + turns_s) / (1 if fresh >= least else 2):
            break
        more = max(least - fresh, min(most - fresh, int(left_s / (besides_s + turns_s))))
        its_turns_s = max(turns_s, min(MOST_TURNS_S, left_s / more - besides_s))
        began_s, starts_as_written = match.rigs.clock(), fresh % 2 == 0
        measure = _apart if match.is_apart else partial(_together, turns_s=its_turns_s)
        found = measure(match, starts_as_written=starts_as_written)
        if isinstance(found, Failure) and is_of_device(found.ending) and not repeats:
            repeats = True
            continue
        if isinstance(found, Failure):
            if confirmation is None or not confirmation.is_enough or found.is_of_winner:
                return found
            break
        cost_s = match.rigs.clock() - began_s
        processes.append(replace(found, cost_s=cost_s, announcement=match.announcement))
        keep(processes[-1])
        seen_s.append(cost_s - (0.0 if match.is_apart else its_turns_s))
        besides_s, fresh = fmean(seen_s), fresh + 1
    final = match.read(processes)
    if final is None:
        ending = Ending(Outcome.OUT_OF_TIME, "there was no time for a fresh process")
        return Failure(is_of_winner=False, ending=match.should_stop() or ending)
    return final


def _is_over(match: Match, gate: Gate | None, confirmation: Confirmation | None) -> bool:
    if gate is None:
        return match.is_over(confirmation)
    return confirmation is not None and gate.is_over(confirmation)


def _see_page_faults(match: Match, *, starts_as_written: bool) -> None:
    # In a search they were seen before, and the config with which a process starts is alone first.
    second = match.configs[starts_as_written]
    is_known = second.get(KEEPS) or second in match.faults.alone
    if match.is_apart or is_known or match.base.traits.mmap_threshold is None:
        return
    with match.live() as live:
        if live.ready_for(second, match.should_stop) is None:
            live.stay(second, match.should_stop, WARM_UP_S)


def _together(match: Match, *, turns_s: float, starts_as_written: bool) -> ClaimProcess | Failure:
    rounds: list[Pair] = []
    alone: Measurement | None = None
    order = (False, True) if starts_as_written else (True, False)
    for _ in range(MAX_STARTS):
        with match.live() as live:
            steps_s = [0.0, 0.0]
            for winner, least_s in zip(order, (WARM_UP_S, SECOND_S), strict=True):
                config = match.configs[winner]
                failed = live.ready_for(config, match.should_stop)
                stay = failed or live.stay(config, match.should_stop, least_s)
                if isinstance(stay, Ending) and rounds:
                    break  # of a program that ends within seconds: what was played counts
                if isinstance(stay, Ending):
                    return match.failure(stay, of_winner=winner)
                steps_s[winner] = stay.step_s
                if alone is None:
                    alone = Measurement.of(stay.turns, stay.taken)
                    if winner and (excess := over_limit(match.rigs, match.goal, alone)) is not None:
                        return Failure(is_of_winner=True, ending=excess)
            found = play(match, live, steps_s, turns_s) if live.is_open else []
            if isinstance(found, Failure):
                return found
            rounds += found
        if len(rounds) >= LEAST_ROUNDS or (rounds and match.should_stop() is not None):
            break
    if not rounds:
        ending = Ending(Outcome.RAN_OUT, "the program ends before two configs have taken turns")
        return Failure(is_of_winner=False, ending=ending)
    found_alone = (alone, None) if starts_as_written else (None, alone)
    return of_rounds(match, rounds, found_alone, starts_as_written=starts_as_written)


def of_rounds(
    match: Match,
    rounds: Sequence[Pair],
    alone: tuple[Measurement | None, Measurement | None] = (None, None),
    *,
    starts_as_written: bool = True,
) -> ClaimProcess:
    """Return what the rounds of one process show; *alone* is what either did alone in it."""
    found = speeds([[[dict(enumerate(one)) for one in rounds]]], 0)
    assert found is not None, "there are rounds of both"
    own, its = (sum(side[1:], side[0]) for side in zip(*rounds, strict=True))
    before, after = (side.samples / side.seconds for side in (own, its))
    work = match.work(its.samples / its.steps * own.steps / own.samples)
    ratio = replace(found.of(1), value=found.of(1).value + math.log(work))
    return ClaimProcess(
        *(match.winner, starts_as_written, ratio, *alone, (before, after), len(rounds)),
        cost_s=0.0,
        turns=told(rounds, work),
    )


def told(rounds: Sequence[Pair], work: float = 1.0) -> tuple[float, ...]:
    """Return the speedup in each round, in four digits; of many rounds, those of every n-th."""
    some = rounds[:: math.ceil(len(rounds) / MOST_TOLD)]
    ratios = (work * its.work / its.cost * own.cost / own.work for own, its in some)
    return tuple(float(f"{ratio:.4g}") for ratio in ratios)


def play(
    match: Match, live: LiveRig, steps_s: Sequence[float], turns_s: float
) -> list[Pair] | Failure:
    """Let both take turns for so many seconds; their steps take *steps_s* at first.

    If the program or the time ends before, what was played counts; not what was played while others
    took the machine.
    """
    clock, dice = match.rigs.clock, random.Random(0)
    configs, steps = match.configs, dict(enumerate(steps_s))
    until, rounds = clock() + turns_s, list[Pair]()
    while clock() < until or len(rounds) < LEAST_ROUNDS:
        lengths = [live.length(c, steps[n]) for n, c in enumerate(configs)]
        call_s = min(PLAY_S, max(0.0, until - clock()))
        game = live.play(configs, lengths, call_s, match.goal, dice, match.should_stop)
        if isinstance(game, Ending):
            is_cut = game.outcome is Outcome.RAN_OUT or game.outcome in ENDED_BY_US
            return rounds if is_cut and rounds else match.failure(game, of_winner=True)
        if game.lost is not None:
            lost = Ending(Outcome.NOT_FINITE, "the loss became NaN or infinite")
            return match.failure(lost, of_winner=game.lost == 1)
        steps |= game.steps_s
        swamped = match.swamped([one[0] for one in game.rounds]) if game.is_disturbed else None
        if swamped is None:
            rounds += [(one[0], one[1]) for one in game.rounds]
        elif clock() >= until and len(rounds) < LEAST_ROUNDS:
            return Failure(is_of_winner=False, ending=swamped)
    return rounds


def _apart(match: Match, *, starts_as_written: bool) -> ClaimProcess | Failure:
    alone: dict[bool, Measurement] = {}
    rates: dict[bool, Interval] = {}
    for winner in (False, True) if starts_as_written else (True, False):
        config = match.configs[winner]
        with match.live(winner=winner) as live:
            stay = live.alone(config, match.should_stop)
            if isinstance(stay, Ending):
                return match.failure(stay, of_winner=winner)
        alone[winner] = Measurement.of(stay.turns, stay.taken)
        if winner and (excess := over_limit(match.rigs, match.goal, alone[winner])) is not None:
            return Failure(is_of_winner=True, ending=excess)
        parts = [part for turn in stay.turns if (part := played(turn)) is not None]
        is_disturbed = alone[winner].is_disturbed and not winner
        if is_disturbed and (swamped := match.swamped(parts)) is not None:
            return Failure(is_of_winner=False, ending=swamped)
        rates[winner] = rate([match.goal.worth(part, stay.taken) or part for part in parts])
    work = match.work(alone[True].samples_per_step / alone[False].samples_per_step)
    value = math.log(rates[True].estimate * work / rates[False].estimate)
    error = math.hypot(*(math.log(one.high / one.low) / (2 * NORMAL) for one in rates.values()))
    samples_per_s = (alone[False].throughput.estimate, alone[True].throughput.estimate)
    return ClaimProcess(
        match.winner,
        starts_as_written,
        LogRatio(value, error),
        alone[False],
        alone[True],
        samples_per_s,
        rounds=1,
        cost_s=0.0,
        is_pair=True,
    )
