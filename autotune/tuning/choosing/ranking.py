"""Ranking: which of the measured configs may win, and which are worth a confirmation."""

from __future__ import annotations

import math
from collections.abc import Sequence

from autotune.knobs.space.space import ResolvedSpace
from autotune.results.record import TrialRecord, latest
from autotune.tuning.confirming.confirmation import WORTH_CONFIRMING
from autotune.tuning.storage.study import Study

SAME_SPEED = 0.99  # of the fastest: within the noise of live measurements, as fast
SAME_SPEED_APART = 0.95  # the same of configs in different processes
# By how many standard deviations of its estimate a config that needs a fresh process has to be
# faster besides: starting and compiling it takes most of the time of a confirmation.
APART_BY, APART_LEAST = 0.5, 0.9


def ranked(records: Sequence[TrialRecord], space: ResolvedSpace) -> list[TrialRecord]:
    """Return the measured records that may win, best first.

    Among those as fast as the best, within the noise of a live measurement, the one with the fewest
    changes comes first: a knob without effect does not belong in a best config. A config that needs
    a fresh process comes first only if it is faster than the others beyond the noise. The baseline,
    configs without the user's fixed values and those that the space defers are left out.
    """
    able = [
        r
        for r in latest(records)
        if r.speedup is not None
        and r.config != space.baseline
        and not space.defers(r.config)
        and (not space.fixed or r.config == space.canonical(r.config.replace(**space.fixed)))
    ]
    if not able:
        return []
    best = _leader(able, space)

    def order(record: TrialRecord) -> tuple[bool, int, float]:
        is_apart = space.needs_restart(best.config, record.config)
        same = SAME_SPEED_APART if is_apart else SAME_SPEED
        # One of another process than the fastest was compared with it by ``_leader()``
        is_settled = is_apart and not (_restarts(best, space) and _restarts(record, space))
        is_level = not is_settled and _speed(record) >= same * _speed(best)
        changes = len(record.config.changes_from(space.baseline))
        return (not is_level, changes if is_level else 0, -_speed(record))

    return sorted(able, key=order)


def _leader(able: Sequence[TrialRecord], space: ResolvedSpace) -> TrialRecord:
    """Return the fastest record; in doubt, the fastest that runs in the process of the baseline."""
    best = max(able, key=_speed)
    together = [record for record in able if not _restarts(record, space)]
    if not together:
        return best
    rival = max(together, key=_speed)
    same = max(APART_LEAST, SAME_SPEED_APART * math.exp(-APART_BY * _deviation(best)))
    return rival if _speed(rival) >= same * _speed(best) else best


def _restarts(record: TrialRecord, space: ResolvedSpace) -> bool:
    """Return whether a record's config needs a process that the baseline cannot share."""
    return space.needs_restart(space.baseline, record.config)


def _speed(record: TrialRecord) -> float:
    assert record.speedup is not None, "only measured records are ranked"
    return record.speedup.estimate


def _deviation(record: TrialRecord) -> float:
    """Return about one standard deviation of the logarithm of a record's speedup."""
    assert record.speedup is not None, "only measured records are ranked"
    return math.log(record.speedup.high / record.speedup.low) / 4


def looks_faster(record: TrialRecord) -> bool:
    """Return whether a record's config is worth a confirmation.

    Either the whole live interval lies above 1, or the estimate is at least ``WORTH_CONFIRMING``.
    """
    found = record.speedup
    return found is not None and (found.low > 1.0 or found.estimate >= WORTH_CONFIRMING)


def promising(study: Study, space: ResolvedSpace) -> list[TrialRecord]:
    """Return the records that look faster than the baseline, best first.

    Configs that contain the changes blamed by a rehearsal are left out: they fail outside of the
    training loop, in the evaluation or a checkpoint for example.
    """
    able = [
        record
        for record in study.records
        if not any(changes.items() <= record.config.items() for changes in study.guilty)
    ]
    return [record for record in ranked(able, space) if looks_faster(record)]
