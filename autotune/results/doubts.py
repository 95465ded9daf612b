"""Doubts: why a result is to be trusted less than others, as clauses for the user."""

from __future__ import annotations

import math
from collections.abc import Iterator

from autotune.measurement.measurement import Measurement, disturbance_of
from autotune.results.advice import unsearched
from autotune.results.rehearsals import trained
from autotune.results.result import SearchResult
from autotune.results.wording import printed


def doubts(result: SearchResult) -> Iterator[str]:
    """Yield the reasons to trust a confirmed config less, as clauses; what matters most first."""
    if (record := trained(result.rehearsals, result.best)) is not None and record.difference:
        yield f"its training differs: {record.difference}"
    (measured, _), busy = _measured(result), disturbance(result)
    is_mostly = 0 < len(measured) <= 2 * sum(one.is_disturbed for one in measured)
    if is_mostly:
        yield busy
    if result.uncompared:
        yield f"not compared whether it trains the same: {', '.join(result.uncompared)}"
    if result.learning.batch_growth != 1.0:
        yield "steps have other samples than as written: check the final accuracy"
    yield from reversed(result.warnings)  # what was not tried, before what made it less sure
    if busy and not is_mostly:
        yield busy
    if result.reason:
        yield f"the search ended early: {result.reason}"
    yield from left_to_edit(result)
    if result.steps_note:
        yield result.steps_note
    if overlap := overlap_of(result):
        yield overlap


def left_to_edit(result: SearchResult) -> Iterator[str]:
    """Yield what only an edit of the program would mend, as sentences."""
    own = result.records[0].measurement
    if result.facts is not None and own is not None:
        yield from unsearched(result.facts.profile, own, result.facts.breakdown)


def overlap_of(result: SearchResult) -> str:
    """Return that the gains of the changes do not multiply to the claim, where that is seen."""
    gains = [one.gain.estimate for one in result.contributions if one.knob in result.changes]
    claim = printed(result.speedup)
    if len(gains) < 2 or claim.low <= math.prod(gains) <= claim.high:
        return ""
    return "the gains overlap, so they do not multiply to the whole"


def disturbance(result: SearchResult) -> str:
    """Return what disturbed the confirmation, or the trials without one; empty if nothing did."""
    return disturbance_of(*_measured(result))


def _measured(result: SearchResult) -> tuple[list[Measurement], str]:
    if confirmed := [one for process in result.claim for one in process.alone]:
        return confirmed, "fresh processes"
    return [r.measurement for r in result.records if r.measurement is not None], "trials"
