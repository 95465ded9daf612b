"""The claim of a search: which candidate is proved, in which time, and what may be said of it.

Of several machines that share the search, each proves the config that they have announced, and
what they say together is claimed for another machine of their kind.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from autotune.knobs.space.space import ResolvedSpace
from autotune.measurement.claim import least_processes
from autotune.measurement.measurement import Measurement
from autotune.measurement.outcome import ENDED_BY_US, Ending, Outcome
from autotune.program.config import Config
from autotune.program.may_change import MayChange
from autotune.results.record import ClaimProcess, TrialRecord, slowest_compilation
from autotune.tuning.agree import PAUSE_S, agreed, await_announcement, may_be_claimed
from autotune.tuning.choosing.chooser import Proposal
from autotune.tuning.choosing.ranking import promising
from autotune.tuning.events import Phase
from autotune.tuning.plan import OWN_TURNS_S
from autotune.tuning.proof import (
    LEAST_ROUNDS,
    SECOND_S,
    Confirmation,
    Failure,
    Match,
    ProcessTime,
    fresh_of,
    of_rounds,
    play,
    prove,
)
from autotune.tuning.race import tell
from autotune.tuning.session import Baseline, Session

NO_TIME_APART = "what can be tried here needs fresh processes, for which there was no time"
NOT_SEEN_EQUAL = (
    "its losses were not seen to be equal bit for bit; a longer --budget, or --may-change rounding"
)
NOT_CHECKED = "what its larger batch learns was not checked on this machine"
CANDIDATES = 2  # configs that may fail in a fresh process before the baseline is kept


@dataclass(frozen=True)
class ClaimResult:
    """Outcome of the claim.

    Attributes:
        candidate: The config that looked best; None if nothing looked faster than the baseline.
        confirmation: What fresh processes measured; None if they could not be run.
        reason: Why there is no confirmation that says enough; empty if there is one, or if configs
            were measured and none looked faster.
    """

    candidate: TrialRecord | None
    confirmation: Confirmation | None = None
    reason: str = ""

    @property
    def best(self) -> Config | None:
        """The config that may be claimed to be faster; None if there is none."""
        is_faster = self.confirmation is not None and self.confirmation.is_faster
        return self.candidate.config if self.candidate is not None and is_faster else None

    @property
    def speedup(self) -> float:
        """What is claimed; 1 if nothing is."""
        is_claimed = self.confirmation is not None and self.confirmation.is_faster
        return self.confirmation.speedup.estimate if self.confirmation and is_claimed else 1.0


def claim_best(session: Session, baseline: Baseline) -> ClaimResult:
    """Claim the best config; if it fails in a fresh process, try the next best.

    At most ``CANDIDATES`` configs are tried. If the user or the budget ends the claim, no other
    candidate is tried.
    """
    session.live.close()  # its process would compete with the fresh ones
    able = promising(session.study, baseline.space)
    faster = [r for r in able if may_be_claimed(session, baseline, r.config)]
    if not faster:
        await_announcement(session)
    is_strict = baseline.space.may_change is MayChange.NOTHING
    unsound = NOT_SEEN_EQUAL if is_strict else NOT_CHECKED
    reason = "" if faster else _why_nothing_was_compared(session, baseline.space)
    result, tried = ClaimResult(None, reason=reason), set[Config]()
    if is_strict and able and not faster:
        result = ClaimResult(able[0], reason=unsound)
    for _ in range(CANDIDATES):
        own = next((r for r in faster if r.config not in tried), None)
        candidate = agreed(session, baseline, own)
        if candidate is None:
            break
        if not may_be_claimed(session, baseline, candidate.config):
            return ClaimResult(candidate, reason=unsound)
        tried.add(candidate.config)
        match = match_of(session, baseline, candidate)
        outcome = prove_in_time(session, match, candidate)
        if isinstance(outcome, Confirmation):
            return ClaimResult(candidate, outcome, outcome.lack)
        reason = outcome.ending.reason
        if not outcome.is_of_winner:
            if outcome.ending.outcome not in {*ENDED_BY_US, Outcome.UNCLEAR}:
                reason = f"the program as written failed in a fresh process: {reason}"
            return ClaimResult(candidate, match.read(_earlier(session, match)), reason)
        result = ClaimResult(candidate, reason=reason)
        if outcome.ending.outcome is not Outcome.OUT_OF_TIME:
            session.sharing.refuse(f"it failed in a fresh process: {reason}")
            session.events.warn(f"The best config failed in a fresh process: {reason}")
    return result


def match_of(session: Session, baseline: Baseline, candidate: TrialRecord) -> Match:
    """Return the match of a candidate with the program as written."""
    study, announced = session.study, session.sharing.announced()
    compilation = slowest_compilation(study.known_records, candidate.config)
    is_shared = announced is not None and announced.config == candidate.config
    return Match(
        session.rigs,
        baseline.space,
        baseline.applied,
        candidate.config,
        session.until_overdrawn,
        study.goal,
        study.goal.kept_share(0.0 if compilation is None else compilation.seconds),
        faults=session.live.faults,
        usual_rate=baseline.measurement.throughput.estimate,
        announcement=announced.name if announced is not None and is_shared else "",
        elsewhere=session.sharing.claims_elsewhere if is_shared else dict,
    )


def play_on(session: Session, baseline: Baseline) -> None:
    """Let the candidate and the program as written play on in the search's own process.

    Their turns come after the candidate was chosen, so they count for the claim like those of one
    more process, and cost no start. Of several machines, not before one has announced it, which
    waits for what is tried in fresh processes.
    """
    study, live, space = session.study, session.live, baseline.space
    has_later = bool(space.restart & space.domains.keys()) and session.may_restart()
    if has_later and not session.sharing.is_alone and session.sharing.announced() is None:
        return
    candidate = agreed(session, baseline, next(iter(promising(study, space)), None))
    if candidate is None or not live.is_open:
        return
    match = match_of(session, baseline, candidate)
    is_known = any(one.config == candidate.config for one in study.claim)
    is_unsettled = not session.sharing.is_alone and not match.announcement
    is_short = session.until_over.left_s() < OWN_TURNS_S
    if match.is_apart or is_known or is_unsettled or is_short:
        return
    began_s = session.rigs.clock()
    match = replace(match, should_stop=session.until_over)
    # of a search that goes on, this process has not seen the candidate yet
    stay = live.stay(match.winner, match.should_stop, SECOND_S)
    if isinstance(stay, Ending) or not live.is_open:
        return
    measured = candidate.measurement or Measurement.of(stay.turns, stay.taken)
    if candidate.measurement is None:  # it has entered here for the first time
        cost_s, config = session.rigs.clock() - began_s, candidate.config
        candidate = TrialRecord(
            config, candidate.why, measured, None, candidate.speedup, live.number, cost_s
        )
        tell(session, space, Proposal(config, candidate.why), candidate)
    lengths = [
        live.length(match.base.config, baseline.measurement.step_s),
        live.length(match.winner, stay.step_s),
    ]
    if LEAST_ROUNDS * sum(length.seconds for length in lengths) > 2 * OWN_TURNS_S:
        return  # steps so long would take the time that is kept for fresh processes
    steps_s = [baseline.measurement.step_s, measured.step_s]
    rounds = play(match, live, steps_s, OWN_TURNS_S)
    if isinstance(rounds, Failure) or not rounds:
        return
    process = of_rounds(match, rounds)
    cost_s = session.rigs.clock() - began_s
    process = replace(process, cost_s=cost_s, is_of_search=True, announcement=match.announcement)
    _keep(session, process)


def prove_in_time(
    session: Session, match: Match, candidate: TrialRecord, kept_s: float = 0.0
) -> Confirmation | Failure:
    """Run fresh processes while time is left, but for the seconds that are kept.

    A claim that an earlier session began goes on in any case: what it recorded may be enough.
    """
    earlier = _earlier(session, match)
    if session.stop.requests > 1:  # nothing is started any more
        ending = match.should_stop() or Ending(Outcome.INTERRUPTED, "")
        return match.read(earlier) or Failure(is_of_winner=False, ending=ending)
    plan, one_s = session.plan, session.plan.claim_s(is_apart=match.is_apart, processes=1)
    if not fresh_of(earlier) and session.budget.overdraft_s < one_s:
        needed_s = plan.claim_s(is_apart=match.is_apart)
        reason = (
            f"fresh processes take about {needed_s:.0f} s, but the budget had only "
            f"{max(0, session.budget.left_s):.0f} s left"
        )
        # After one that needs processes of its own, the next one may share them
        return Failure(is_of_winner=match.is_apart, ending=Ending(Outcome.OUT_OF_TIME, reason))
    session.begin(Phase.CONFIRM)
    session.events.on_confirmation(candidate, match.space)

    def time_left_s(fresh: int) -> float:
        if not session.stop.requests:
            return session.budget.left_s - kept_s
        least = least_processes(apart=match.is_apart)
        each_s = session.plan.claim_s(is_apart=match.is_apart) / least
        return max(0, least - fresh) * each_s if session.stop.requests < 2 else 0.0

    def keep(process: ClaimProcess) -> None:
        _keep(session, process)
        session.events.on_process(process)

    found = prove(match, earlier, keep, time_left_s, ProcessTime(plan.process_s, plan.turns_s))
    if isinstance(found, Failure) or not _await_others(session, match):
        return found
    return match.read(found.processes) or found


def _earlier(session: Session, match: Match) -> list[ClaimProcess]:
    # What was recorded of this claim, without what began before it was announced
    return [
        one
        for one in session.study.claim_of(match.winner)
        if match.announcement in {"", one.announcement} and one.is_pair is match.is_apart
    ]


def _keep(session: Session, process: ClaimProcess) -> None:
    session.study.claim = (*session.study.claim, process)
    session.study.spent_s = session.budget.spent_s
    session.sharing.claimed(process)


def _await_others(session: Session, match: Match) -> bool:
    # At most as long as a claim takes, as others may have begun later, and with the overdraft, as
    # what they have begun may end in it; whether there was a wait
    sharing, clock = session.sharing, session.rigs.clock
    if not match.announcement or not sharing.awaits_claims():
        return False
    until = clock() + session.plan.claim_s(is_apart=match.is_apart)
    session.events.note("Waiting for other machines to measure the same config.")
    while sharing.awaits_claims() and clock() < until and match.should_stop() is None:
        if session.stop.requests:
            break
        sharing.pause(PAUSE_S)
    return True


def _why_nothing_was_compared(session: Session, space: ResolvedSpace) -> str:
    # Without this, a search that ended too early would report "no gain".
    if session.stop.cut:
        return session.stop.cut
    if session.trouble or any(r.measurement is not None for r in session.study.records[1:]):
        return session.trouble
    if (ending := session.until_last_trial()) is not None:
        return ending.reason
    needs_start = bool(space.restart & space.domains.keys())
    return NO_TIME_APART if needs_start and not session.may_restart() else ""
