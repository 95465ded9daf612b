"""Earlier searches in the same folder: what they saw of this program, and what they found best.

Their visits are evidence about which configs are worth a visit now; claims never rest on them. They
count if nothing that a search can see has changed: the program's source, its arguments, the
machine, and the versions of Python and torch. The best config of the latest search of another
program is tried early, because what helps on a machine often helps again.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from pydantic import ValidationError
from sqlalchemy.exc import SQLAlchemyError

from autotune.errors import AutotuneError
from autotune.knobs.space.space import ResolvedSpace
from autotune.measurement.visit import Visit
from autotune.program.config import Config, KnobValue
from autotune.results.record import SearchInfo, TrialRecord
from autotune.results.speedups import seen_in
from autotune.tuning.choosing.ranking import promising
from autotune.tuning.storage.search_dir import FILE, SearchDir

MOST_RUNS = 6  # the latest ones; reading one takes a tenth of a second
PROCESSES = 10_000  # numbers that a search has for its own
LONG_AGO_S = 3600.0  # between sessions, so that no drift is shared
SAME_SPEED = 1.3  # factor by which the baseline may differ, else something unseen has changed
SAME = "the best of an earlier search of this program"
SIMILAR = "the best of an earlier search here, of another program"


@dataclass(frozen=True)
class Earlier:
    """What earlier searches say.

    Attributes:
        visits: Of this program, each with its config.
        hints: Configs that are tried early, with the reason.
    """

    visits: tuple[tuple[Config, Visit], ...] = ()
    hints: tuple[tuple[Config, str], ...] = ()


def look(run: SearchDir, head: SearchInfo, space: ResolvedSpace, baseline: TrialRecord) -> Earlier:
    """Return what earlier searches in the same folder say about a program.

    Args:
        run: The directory of the search; its parent holds the others.
        head: What is searched.
        space: What may be tried.
        baseline: The first record, whose visit must be like those of the earlier searches.
    """
    visits: list[tuple[Config, Visit]] = []
    hints: dict[str, tuple[Config, str]] = {}
    for number, folder in enumerate(_others(run.path), start=1):
        try:
            study = folder.load_study()
            if study.facts is None or head.hardware.differences(study.head.hardware):
                continue
            records, theirs = study.records, study.space
            is_same = _is_same(head, study.head) and theirs.baseline == space.baseline
            best = next(iter(promising(study, theirs)), None)
            has_goal = head.options.goal == study.head.options.goal
        # a run of another version, with knobs that are gone, or one that is being written
        except (AutotuneError, ValidationError, SQLAlchemyError, OSError, ValueError, KeyError):
            continue
        if is_same and records and _is_alike(baseline, records[0]):
            visits += [v for v in _visits(records, baseline, number) if _is_known(v[0], space)]
        why = SAME if is_same else SIMILAR
        if best is not None and has_goal and why not in hints:
            hints[why] = (_fitting(best.config.changes_from(theirs.baseline), space), why)
    return Earlier(
        tuple(visits), tuple(hint for hint in hints.values() if hint[0] != space.baseline)
    )


def _others(path: Path) -> list[SearchDir]:
    """Return the latest other runs in the same folder."""
    others = [file for file in path.parent.glob(f"*/{FILE}") if file.parent != path]
    latest = sorted(others, key=lambda file: -file.stat().st_mtime)[:MOST_RUNS]
    return [SearchDir(file.parent) for file in latest]


def _is_known(config: Config, space: ResolvedSpace) -> bool:
    """Whether every value of a config may be tried, or is the program's own."""
    if config == space.baseline:
        return True
    if config.keys() != space.baseline.keys() or not space.fixed.items() <= config.items():
        return False
    return all(config[knob] in domain.values for knob, domain in space.domains.items()) and all(
        config[knob] == space.start[knob] for knob in config.keys() - space.domains.keys()
    )


def _is_same(one: SearchInfo, other: SearchInfo) -> bool:
    """Whether two searches are about the same program, trained and compared in the same way."""
    fields = ("fingerprint", "function", "args", "keywords", "ranks", "env", "python_options")
    is_program = all(getattr(one.program, f) == getattr(other.program, f) for f in fields)
    return is_program and one.options.goal == other.options.goal


def _is_alike(baseline: TrialRecord, other: TrialRecord) -> bool:
    """Whether two searches measured about the same speed of the program as written."""
    if not baseline.visits or not other.visits:
        return False
    one, two = baseline.visits[0], other.visits[0]
    return one.mode == two.mode and abs(one.log_rate - two.log_rate) < math.log(SAME_SPEED)


def _visits(
    records: Sequence[TrialRecord], baseline: TrialRecord, number: int
) -> Iterator[tuple[Config, Visit]]:
    """Yield the visits of an earlier search, in other processes and long before."""
    seen = [(config, visit) for (config, _), visit in seen_in(records)]
    last_s, process = max(visit.at_s for _, visit in seen), PROCESSES * number
    began_s = baseline.visits[0].at_s - number * LONG_AGO_S
    for config, visit in seen:
        at_s = began_s + visit.at_s - last_s
        yield config, replace(visit, at_s=at_s, process=-process - visit.process)


def _fitting(changes: Mapping[str, KnobValue], space: ResolvedSpace) -> Config:
    """Return the start of a search with the changes that need no fresh process.

    The baseline if one of them cannot be made here: the others may help only with it.
    """
    live = {knob: value for knob, value in changes.items() if knob not in space.restart}
    if any(k not in space.domains or v not in space.domains[k].values for k, v in live.items()):
        return space.baseline
    config = space.canonical(space.start.replace(**live))
    return space.baseline if space.conflicts(config) else config
