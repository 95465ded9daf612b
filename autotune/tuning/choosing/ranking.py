"""Ranking: which config is recommended, and which others are worth a look."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from autotune.knobs.space.space import ResolvedSpace
from autotune.measurement.claim import APART_LEAST
from autotune.measurement.rounds import Speeds
from autotune.program.config import Config
from autotune.results.record import TrialRecord, latest
from autotune.tuning.choosing.effects import KnobEffects
from autotune.tuning.choosing.worth import is_worth, may_win, must_gain
from autotune.tuning.storage.study import Study

# A live speedup worth confirming however wide its interval is: only the claim decides
WORTH_CONFIRMING = 1.02
WORTH_TELLING = 1.05  # speedup of a larger batch over what is recommended


def able_to_win(study: Study, space: ResolvedSpace, speeds: Speeds) -> list[Config]:
    """Return the configs that have played, have not failed since, and may be recommended."""
    failed = {r.config for r in latest(study.known_records) if r.ending is not None}
    configs = (c for c in speeds.configs if isinstance(c, Config) and c not in failed)
    guilty = study.guilty
    return [config for config in configs if may_win(space, config, guilty)]


def recommended(study: Study, space: ResolvedSpace) -> Config:
    """Return the config to recommend, by the rounds alone; the baseline if none is worth it.

    Speed counts, and against it each change, by what one must gain. Then changes go whose absence
    was measured and may cost nothing.
    """
    able = [] if study.speeds is None else able_to_win(study, space, study.speeds)
    foreseen = KnobEffects.of(space).foresee(study.speeds, able)
    best = _best_of(able, space, foreseen)
    if best is None or _worth(best, space, foreseen) <= 0:
        return space.baseline
    return best


def _worth(config: Config, space: ResolvedSpace, foreseen: Speeds) -> float:
    return foreseen.of(config).value - must_gain(config.changes_from(space.baseline))


def _best_of(able: Sequence[Config], space: ResolvedSpace, foreseen: Speeds) -> Config | None:
    best = max(able, key=lambda c: _worth(c, space, foreseen), default=None)
    while best is not None:
        own = best.changes_from(space.baseline).items()
        fewer = [
            one
            for one in able
            if one.changes_from(space.baseline).items() < own
            and not is_worth(best.changes_from(one), foreseen.of(best, over=one))
        ]
        if not fewer:
            break
        best = max(fewer, key=lambda c: _worth(c, space, foreseen))
    return best


def ranked(study: Study, space: ResolvedSpace) -> list[TrialRecord]:
    """Return the measured records that may win, best first.

    The first one is the recommended config, the second what would be recommended without it, and so
    on. Configs that need a fresh process come first only where they are faster by far.
    """
    guilty = study.guilty
    records = [
        r
        for r in latest(study.known_records)
        if r.ending is None and r.speedup is not None and may_win(space, r.config, guilty)
    ]
    speeds = study.speeds
    by_config = {r.config: r for r in records}
    left = [c for c in by_config if speeds is not None and c in speeds]
    foreseen = KnobEffects.of(space).foresee(speeds, tuple(left))
    order: list[TrialRecord] = []
    while (best := _best_of(left, space, foreseen)) is not None:
        order.append(by_config[best])
        left.remove(best)
    most = max((_speed(record) for record in order), default=1.0)
    apart = [r for c, r in by_config.items() if speeds is None or c not in speeds]
    apart.sort(key=_speed, reverse=True)
    ahead = [r for r in apart if _speed(r) >= math.exp(APART_LEAST) * most]
    return [*ahead, *order, *(r for r in apart if r not in ahead)]


def larger_batch(study: Study, space: ResolvedSpace, shown: Config) -> TrialRecord | None:
    """Return the fastest config with another global batch that is clearly faster than *shown*.

    Those that were seen to fail, or to learn less, are left out. None if *shown* has one itself.
    """
    able = [r for r in ranked(study, replace(space, defers_growth=False)) if space.grows(r.config)]
    if space.grows(shown) or not able:
        return None
    own = {r.config: _speed(r) for r in study.known_records if r.speedup is not None}
    return able[0] if _speed(able[0]) >= WORTH_TELLING * own.get(shown, 1.0) else None


def deferred_batch(study: Study, space: ResolvedSpace, shown: Config) -> TrialRecord | None:
    """Return the ``larger_batch`` where such a config may not be recommended."""
    return larger_batch(study, space, shown) if space.defers_growth else None


def _speed(record: TrialRecord) -> float:
    assert record.speedup is not None, "only measured records are ranked"
    return record.speedup.estimate


def promising(study: Study, space: ResolvedSpace) -> list[TrialRecord]:
    """Return the records that look faster than the baseline, best first.

    By the whole of their live interval, or by an estimate that is worth a confirmation. What
    machines that share the search had announced, and one of them has refused, comes no more.
    """
    refused = {one.config for one in study.sharing.refusals()}
    return [
        record
        for record in ranked(study, space)
        if record.config not in refused
        and record.speedup is not None
        and (record.speedup.low > 1.0 or record.speedup.estimate >= WORTH_CONFIRMING)
    ]
