"""The race: configs take turns in the running program, and those that surely lose leave.

In play at first are the program as written, the config with every change that should help, and its
neighbours, which leave out one change each, so that what a change gives is measured from the start.
After each few rounds the sampler is told what is known, and asked for another config. The last
rounds belong to the best ones and their neighbours with one change fewer.

A config enters by a stay: some turns alone, in which its workers start, its kernels are chosen, its
memory is taken. So what fails there is its own fault, and no other config's turn pays for it. If
the process ends or fails later, another is started and those in play enter it again.

What is measured here only selects a candidate; claims rest on fresh processes alone.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Container
from dataclasses import dataclass, field, replace

import numpy as np

from autotune.knobs.space.space import ResolvedSpace
from autotune.machine.probes.torch_memory import SPARE_SHARE
from autotune.measurement.goal import NO_COUNTER
from autotune.measurement.measurement import Measurement
from autotune.measurement.outcome import ENDED_BY_US, Ending, Outcome
from autotune.measurement.rounds import Array, Speeds
from autotune.measurement.turn import Length, Played, Taken
from autotune.program.applied_config import LOADER_OPTIONS
from autotune.program.config import Config
from autotune.program.lr import batch_parts
from autotune.results.blame import is_of_device, judged, unclear
from autotune.results.record import PlayedRounds, TrialRecord
from autotune.tuning.budget import Until
from autotune.tuning.choosing.chooser import Field, Proposal
from autotune.tuning.choosing.diagnosis import Diagnosis
from autotune.tuning.choosing.effects import KnobEffects
from autotune.tuning.choosing.first_compiles import FirstCompiles
from autotune.tuning.choosing.proposals import Proposals
from autotune.tuning.choosing.ranking import able_to_win, recommended
from autotune.tuning.events import Phase
from autotune.tuning.live_rig import ALONE_S, METERED_S, PLAY_S, WARM_UP_S, Stay, over_limit
from autotune.tuning.session import Baseline, Session

SEATS = 8  # configs in play at most; the last seat is kept for the best and what is simpler
# Rounds that a config must be able to play until the end, to enter; the best and what is like it
WORTH_ROUNDS, FEW_ROUNDS = 6, 2
LOSES = 0.01  # chance to be the best one, below which a config leaves
LEAST_ROUNDS = 3  # answers of the rig in which it has played by then
# The race is over when more rounds promise less than this, as a logarithm, and the speedup is known
# to that
WORTH_MORE, KNOWN = 0.004, 0.01
LOADER_STAY_S = 0.5  # until workers have started and delivered
TOO_SHORT = "the program ends too soon for more configs to take turns"
NO_ROUND = "the program ends or fails before configs have taken turns"
MAX_FAILURES = 3  # of a process in play, after which the race ends with what it has
WORKERS_PER_CORE = 2  # of all loaders in play: those that rest are stopped, but keep their memory
MAX_AMISS = 0.5  # of the logarithm of a batch's growth that a flag is to have caused


@dataclass(frozen=True)
class Entrant:
    """A config in play."""

    proposal: Proposal
    measurement: Measurement
    length: Length
    factor: float
    cost_s: float


@dataclass
class _Lives:
    failures: int = 0
    shortest: int | None = None  # of one that came to its end
    turns: int = 0  # of the present one
    returned: set[tuple[int, Config]] = field(default_factory=set)  # to which process


class Race:
    """Runs the race of a search."""

    def __init__(self, session: Session, baseline: Baseline, diagnosis: Diagnosis) -> None:
        self._session, self._baseline = session, baseline
        self._study, self._live = session.study, session.live
        self._written = baseline.space.baseline
        self._dice = random.Random(session.study.head.options.seed)
        self._proposals = Proposals(self._study, baseline.space, diagnosis, self._allows)
        self._in_play: dict[Config, Entrant] = {}
        self._played: Counter[Config] = Counter()
        self._suspected: Counter[tuple[Config, Outcome]] = Counter()  # how often, and of what
        self._lives = _Lives()
        self._compiles = FirstCompiles(self._study, baseline.space)

    def run(self) -> None:
        """Race until nothing promises more, or only the time kept for the claim is left."""
        try:
            self._run()
        finally:  # what is in play has been measured, whatever ends the race
            for config in [*self._in_play][1:]:
                self._leave(config)

    def _run(self) -> None:
        session = self._session
        while session.until_last_trial() is None and self._lives.failures < MAX_FAILURES:
            session.hear()
            if session.accepted(self._baseline.space) is not None or not self._open():
                break
            while (proposal := self._next()) is not None:
                if self._compiles.may_try(proposal.config):
                    self._enter(proposal)
            if not self._live.is_open:  # it ended while the last config stayed
                continue
            session.has_candidate = self._best() != self._written
            awaits_others = self._compiles.ask_again()
            if not awaits_others and (len(self._in_play) < 2 or self._is_decided()):
                field = replace(self._field(), share_left=0.0)
                last = self._of_best(field, field.speeds or ()) or self._proposals.grown(field)
                is_full = len(self._in_play) >= SEATS
                if last is None or is_full or not self._compiles.may_try(last.config):
                    session.events.note("Nothing that the time left allows promises more.")
                    break
                self._enter(last)
                continue
            round_s = sum(entrant.length.seconds for entrant in self._in_play.values())
            if round_s > session.until_confirmation.left_s():
                break
            self._play()
            self._dismiss()
        ended = any(record.outcome is Outcome.RAN_OUT for record in self._study.records)
        if not self._played and (ended or self._lives.failures):
            session.trouble = NO_ROUND

    def _field(self) -> Field:
        records = [*self._study.known_records, *map(self._record, [*self._in_play.values()][1:])]
        return Field(records, self._study.speeds, self._session.share_left)

    def _next(self) -> Proposal | None:
        if not self._may_seat(SEATS, FEW_ROUNDS):
            return None
        field = self._field()
        if (proposal := self._of_best(field)) is not None:
            return proposal
        return self._proposals.next(field) if self._may_seat(SEATS - 1, WORTH_ROUNDS) else None

    def _of_best(self, field: Field, known: Container[Config] = ()) -> Proposal | None:
        for config, why in self._proposals.of_best(field).items():
            seat, returned = (self._live.number, config), self._lives.returned
            if config not in self._in_play and config not in known and seat not in returned:
                returned.add(seat)
                return Proposal(config, why)
        return None

    def _record(self, entrant: Entrant, ending: Ending | None = None) -> TrialRecord:
        speeds, config = self._study.speeds, entrant.proposal.config
        is_known = ending is None and speeds is not None and config in speeds
        speedup = speeds.of(config).interval if speeds and is_known else None
        return TrialRecord(
            config,
            entrant.proposal.why,
            entrant.measurement if ending is None else None,
            ending,
            speedup,
            self._live.number,
            entrant.cost_s,
            entrant.proposal.expected,
        )

    def _open(self) -> bool:
        """Have a process in which all in play have entered; return whether there is one."""
        stop = self._session.until_confirmation
        while not (self._live.is_open and self._in_play):
            self._lives.turns = 0
            found = None if self._live.is_open else self._live.ready_for(self._written, stop)
            if found is not None:
                self._session.rigs.learn(found)
            elif not self._in_play:  # the process that measured the baseline may be at its end
                stay = self._live.stay(self._written, stop)
                if isinstance(stay, Ending):
                    found = stay
                else:
                    written = Proposal(self._written, "the program as written")
                    self._in_play[self._written] = self._entrant(written, stay)
            elif self._lives.shortest is None:  # one that ends within seconds has no time for stays
                for config in [*self._in_play][1:]:
                    if config in self._in_play:  # another one's stay may have opened a process
                        self._stay_again(config)
            self._lives.failures += found is not None
            if found is not None and (stop() is not None or self._lives.failures >= MAX_FAILURES):
                return False
        return True

    def _entrant(self, proposal: Proposal, stay: Stay) -> Entrant:
        config = proposal.config
        measured = Measurement.of(stay.turns, stay.taken)
        length = self._live.length(config, stay.step_s)
        factor = work_factor(self._session, self._baseline, config, measured, stay.compile_s)
        return Entrant(proposal, measured, length, factor, stay.seconds)

    def _allows(self, config: Config) -> bool:
        if config.get("compile", "off") != "off" and not self._session.may_compile():
            return False
        if self._compiles.is_left_to_others(config):
            return False
        loaders = {
            tuple(one.get(knob) for knob in LOADER_OPTIONS): int(one.get("workers", 0))
            for one in (*self._in_play, config)
        }
        cores = self._session.rigs.hardware.cpu_quota
        own = int(self._written.get("workers", 0))
        return sum(loaders.values()) <= max(8, WORKERS_PER_CORE * cores, 2 * own)

    def _may_seat(self, seats: int, rounds: int) -> bool:
        lengths = [entrant.length.seconds for entrant in self._in_play.values()]
        if not self._live.is_open or len(lengths) >= seats:
            return False
        round_s = sum(lengths) + max(lengths)
        if self._study.goal.needs_stays:
            round_s = METERED_S * (len(lengths) + 1)
        if self._lives.shortest is not None and 3 * (len(lengths) + 1) > self._lives.shortest:
            return len(lengths) < 2
        left_s = self._session.until_confirmation.left_s()
        return round_s * (rounds if len(lengths) > 1 else 1) < left_s

    def _enter(self, proposal: Proposal) -> None:
        session, config = self._session, proposal.config
        session.events.on_trial_start(config, proposal.why, self._baseline.space)
        began_s = session.rigs.clock()
        stay = self._stay(config)
        if isinstance(stay, Stay):
            entrant = self._entrant(proposal, stay)
            refusal = self._refusal(config, entrant.measurement, stay.taken)
            if refusal is None:
                self._in_play[config] = entrant
                return
        ending = stay if isinstance(stay, Ending) else refusal
        assert ending is not None, "it did not enter"
        cost_s = session.rigs.clock() - began_s
        record = TrialRecord(
            config, proposal.why, None, ending, None, self._live.number, cost_s, proposal.expected
        )
        record = judged([*self._study.records, record], self._written)[-1]
        self._tell(proposal, record)

    def _stay(self, config: Config) -> Stay | Ending:
        least_s = self._study.goal.least_stay_s
        if config.get("workers"):
            least_s = max(least_s, LOADER_STAY_S)
        stop = self._session.until_confirmation
        if config.get("compile", "off") != "off":
            stop = self._until_compiled(stop)
        stay = self._live.stay(config, stop, least_s, with_loads=True)
        has_ended = isinstance(stay, Ending) and stay.outcome is Outcome.RAN_OUT
        if has_ended and self._open():  # it was at its end when the config came
            stay = self._live.stay(config, stop, least_s, with_loads=True)
        if isinstance(stay, Ending) and stay.outcome is Outcome.CRASHED:
            may_be_chance = is_of_device(stay) and not self._suspected[config, Outcome.UNCLEAR]
            self._suspected[config, Outcome.UNCLEAR] += may_be_chance
            learns = self._session.rigs.learn(stay, as_written=False)
            if (learns or may_be_chance) and self._open():
                return self._stay(config)
            if may_be_chance:
                return unclear(stay, "there was no other process in which it could fail again")
            if not self._live.lived.is_enough(self._session.rigs.program.mode.epochs, stay):
                steps = f"the program as written was not seen to get as far as {stay.steps} steps"
                return unclear(stay, steps)
        return stay

    def _until_compiled(self, stop: Until) -> Until:
        clock, left_s = self._session.rigs.clock, stop.left_s
        most_s = left_s() / 2
        deadline_s = clock() + most_s
        reason = f"compiling took more than {most_s:.0f} s, half of the time that was left"
        return replace(stop, left_s=lambda: min(left_s(), deadline_s - clock()), reason=reason)

    def _stay_again(self, config: Config) -> None:
        if not self._live.is_open:
            return
        stay = self._stay(config)
        if not self._live.is_open and self._lives.shortest is None:
            # no stays in the next one, which is as short
            self._lives.shortest = 2 * len(self._in_play)
        if config not in self._in_play:  # it has left while another process was opened
            return
        if isinstance(stay, Ending) and stay.outcome not in {*ENDED_BY_US, Outcome.RAN_OUT}:
            self._leave(config, stay)

    def _refusal(self, config: Config, measured: Measurement, taken: Taken) -> Ending | None:
        rigs, own = self._session.rigs, self._baseline.measurement
        if excess := over_limit(rigs, self._study.goal, measured, own):
            return excess
        if self._study.goal.worth(Played(1.0, 1.0), taken) is None:
            return Ending(Outcome.UNCLEAR, NO_COUNTER[self._study.goal.objective])
        return self._misnamed(config, measured)

    def _misnamed(self, config: Config, measured: Measurement) -> Ending | None:
        # The learning rate follows the flag, so the samples of a step must follow it, too. A flag
        # may be the batch of the evaluation, or a program may divide its batch by the accumulation
        # steps.
        ours, theirs = batch_parts(self._written), batch_parts(config)
        flags = self._live.base.traits.flags
        changed = [knob for knob in theirs if theirs[knob] != ours.get(knob) and knob in flags]
        wanted = math.prod(theirs.values()) / math.prod(ours.values())
        seen = measured.largest_step / self._baseline.measurement.largest_step
        if not changed or wanted == 1.0 or "devices" in changed:
            return None
        if abs(math.log(seen / wanted)) < MAX_AMISS * abs(math.log(wanted)):
            return None
        named = " and ".join(flags[knob].name for knob in changed)
        return Ending(
            Outcome.CONFLICT,
            f"with {named} changed, a step should have {wanted:g} times the samples, but "
            f"{seen:.2g} times were counted: it is not the batch that is trained on, so the "
            "learning rate must not follow it",
        )

    def _play(self) -> None:
        entrants, configs = [*self._in_play.values()], tuple(self._in_play)
        lengths = [entrant.length for entrant in entrants]
        stop = self._session.until_confirmation
        seconds = min(PLAY_S, stop.left_s())
        game = self._live.play(configs, lengths, seconds, self._study.goal, self._dice, stop)
        if isinstance(game, Ending):
            self._end_of_process(game)
            return
        if game.lost is not None:
            self._lose(configs[game.lost])
            return
        for number, step_s in game.steps_s.items():
            config, entrant = configs[number], entrants[number]
            self._in_play[config] = replace(entrant, length=self._live.length(config, step_s))
        # the first round of a process that ends within seconds stands for the stays
        is_first = self._lives.shortest is not None and not self._lives.turns
        self._lives.turns += game.turns
        rounds = tuple(
            tuple(one[n].times(entrants[n].factor) for n in range(len(configs)))
            for one in game.rounds[is_first:]
        )
        if rounds:
            self._study.add_rounds(PlayedRounds(self._live.number, configs, rounds))
            self._played.update(configs)
        self._study.spent_s = self._session.budget.spent_s  # a search may be killed
        best, speeds = self._best(), self._study.speeds
        counts = min(self._played[one] for one in (best, self._written)) >= LEAST_ROUNDS
        if counts and speeds is not None and best in speeds:
            self._session.events.on_rounds(
                best, math.exp(speeds.of(best).value), self._baseline.space
            )

    def _lose(self, config: Config) -> None:
        # All share the weights, so another one may have spoilt them. The config is to blame if it
        # loses them alone, when it enters again, or once more among others.
        self._live.close()
        if config == self._written:
            self._lives.failures += 1
        else:
            self._suspect(config, Ending(Outcome.NOT_FINITE, "the loss became NaN or infinite"))

    def _suspect(self, config: Config, ending: Ending) -> bool:
        # Perhaps it was chance: a config is to blame if that happens once more
        self._suspected[config, ending.outcome] += 1
        is_to_blame = self._suspected[config, ending.outcome] > 1
        if is_to_blame:
            self._leave(config, ending)
        return is_to_blame

    def _end_of_process(self, ending: Ending) -> None:
        if ending.outcome in ENDED_BY_US:
            return
        if ending.outcome is Outcome.RAN_OUT:
            if self._lives.turns < 2 * len(self._in_play):  # too short even for these
                self._lives.failures += 1
                for config in [*self._in_play][2:]:
                    self._leave(config, Ending(Outcome.OUT_OF_TIME, TOO_SHORT))
            self._lives.shortest = min(self._lives.turns, self._lives.shortest or self._lives.turns)
            return
        self._lives.failures += 1
        if self._session.rigs.learn(ending, as_written=False):
            return
        needs = {c: one.measurement.memory.needed_bytes or 0 for c, one in self._in_play.items()}
        newest, fullest = [*needs][-1], max(needs, key=lambda config: needs[config])
        may_be_guilty = newest != self._written and not self._played[newest]
        needs_more = needs[fullest] > (1 + SPARE_SHARE) * needs[self._written]
        if ending.outcome is Outcome.OUT_OF_MEMORY and needs_more:
            self._leave(fullest, ending)
        elif may_be_guilty and self._suspect(newest, ending):
            return
        if self._lives.failures < MAX_FAILURES:
            self._session.events.warn(
                f"The program failed while configs took turns: {ending.reason}. The search goes on "
                "in another process."
            )

    def _best(self) -> Config:
        return recommended(self._study, self._baseline.space)

    def _dismiss(self) -> None:
        speeds = self._study.speeds
        if speeds is None:
            return
        able, draws = self._draws(speeds)
        firsts = draws.argmax(axis=1)
        chances = {config: float(np.mean(firsts == n)) for n, config in enumerate(able)}
        stays = self._proposals.of_best(self._field())
        for config in [*self._in_play][1:]:
            has_played = self._played[config] >= LEAST_ROUNDS
            if has_played and config not in stays and chances.get(config, 0.0) < LOSES:
                self._leave(config)

    def _is_decided(self) -> bool:
        speeds, best = self._study.speeds, self._best()
        if speeds is None or self._played[self._written] < WORTH_ROUNDS:
            return False
        if any(self._played[config] < LEAST_ROUNDS for config in self._in_play):
            return False
        # What processes differ by is for the claim to tell; more rounds of this one do not
        speeds = speeds.by_rounds or speeds
        if best != self._written and speeds.of(best).error > KNOWN:
            return False
        able, draws = self._draws(speeds)
        lead = draws.max(axis=1) - draws[:, able.index(best)]
        return float(np.mean(lead)) < WORTH_MORE

    def _draws(self, speeds: Speeds) -> tuple[list[Config], Array]:
        able = [self._written, *able_to_win(self._study, self._baseline.space, speeds)]
        foreseen = KnobEffects.of(self._baseline.space).foresee(speeds, able)
        return able, foreseen.draws(self._played.total())

    def _leave(self, config: Config, ending: Ending | None = None) -> None:
        entrant = self._in_play.pop(config)
        record = self._record(entrant, ending)
        if ending is None and record.speedup is None:  # it has played no round
            out = Ending(Outcome.OUT_OF_TIME, "the time for trials was over before its first round")
            record = replace(record, measurement=None, ending=out)
        self._tell(entrant.proposal, record)

    def _tell(self, proposal: Proposal, record: TrialRecord) -> None:
        tell(self._session, self._baseline.space, proposal, record)
        self._compiles.tell(record)


def work_factor(
    session: Session,
    baseline: Baseline,
    config: Config,
    measured: Measurement,
    compile_s: float = 0.0,
) -> float:
    """Return the factor on a config's work, where the samples of a turn are not what counts.

    In a program of a fixed number of steps, a larger batch adds samples without saving steps. And
    the seconds of compiling are no training.
    """
    goal = session.study.goal
    factor, base = goal.kept_share(compile_s), session.live.base
    if config == baseline.space.baseline or not goal.objective.counts_samples:
        return factor
    growth = measured.samples_per_step / baseline.measurement.samples_per_step
    return factor / base.extra_work(config, growth)


def tell(session: Session, space: ResolvedSpace, proposal: Proposal, record: TrialRecord) -> None:
    """Record a trial, and tell it to whoever looks on."""
    session.study.tell(record, space, proposal.trial)
    session.study.spent_s = session.budget.spent_s  # a search may be killed
    records = session.study.records
    session.events.on_trial_end(len(records) - 1, records[-1], space)


def race(session: Session, baseline: Baseline, diagnosis: Diagnosis) -> None:
    """Race the configs of a search; a failed trial does not end it.

    There is none, or no more, once machines that share the search have announced what they claim.
    """
    if session.accepted(baseline.space) is not None:
        return
    session.begin(Phase.TRY)
    plan, asked = session.plan, Proposals(session.study, baseline.space, diagnosis).asked
    if asked:  # one more than these, because the race ends with a whole round
        most_s = max(0.0, session.budget.left_s - plan.kept_s) / 2
        wanted_s = (len(asked) + 1) * (plan.startup_s + WARM_UP_S + ALONE_S)
        session.plan = replace(plan, apart_s=min(most_s, wanted_s))
    Race(session, baseline, diagnosis).run()
    session.plan = replace(session.plan, apart_s=0.0)
