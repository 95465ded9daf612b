"""Earlier searches in the same folder: what they found best.

It is tried early, because what helps on a machine often helps again; claims never rest on it.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from pydantic import ValidationError
from sqlalchemy.exc import SQLAlchemyError

from autotune.errors import AutotuneError
from autotune.knobs.space.space import ResolvedSpace
from autotune.program.config import Config, KnobValue
from autotune.results.record import SearchInfo
from autotune.tuning.choosing.ranking import promising
from autotune.tuning.storage.search_dir import FILE, SearchDir

MOST_RUNS = 6  # the latest ones; reading one takes a tenth of a second
SAME = "the best of an earlier search of this program"
SIMILAR = "the best of an earlier search here, of another program"


def look(run: SearchDir, head: SearchInfo, space: ResolvedSpace) -> list[tuple[Config, str]]:
    """Return configs that earlier searches in the same folder found best, each with the reason.

    Args:
        run: The directory of the search; its parent holds the others.
        head: What is searched.
        space: What may be tried.
    """
    hints: dict[str, tuple[Config, str]] = {}
    for folder in _others(run.path):
        try:
            study = folder.load_study()
            if study.facts is None or head.hardware.differences(study.head.hardware):
                continue
            theirs = study.space
            is_same = _is_same(head, study.head) and theirs.baseline == space.baseline
            best = next(iter(promising(study, theirs)), None)
            has_goal = head.options.goal == study.head.options.goal
        # a run of another version, with knobs that are gone, or one that is being written
        except (AutotuneError, ValidationError, SQLAlchemyError, OSError, ValueError, KeyError):
            continue
        why = SAME if is_same else SIMILAR
        if best is not None and has_goal and why not in hints:
            hints[why] = (_fitting(best.config.changes_from(theirs.baseline), space), why)
    return [hint for hint in hints.values() if hint[0] != space.baseline]


def _others(path: Path) -> list[SearchDir]:
    """Return the latest other runs in the same folder."""
    others = [file for file in path.parent.glob(f"*/{FILE}") if file.parent != path]
    latest = sorted(others, key=lambda file: -file.stat().st_mtime)[:MOST_RUNS]
    return [SearchDir(file.parent) for file in latest]


def _is_same(one: SearchInfo, other: SearchInfo) -> bool:
    """Whether two searches are about the same program, trained and compared in the same way."""
    fields = ("fingerprint", "function", "args", "keywords", "ranks", "env", "python_options")
    is_program = all(getattr(one.program, f) == getattr(other.program, f) for f in fields)
    return is_program and one.options.goal == other.options.goal


def _fitting(changes: Mapping[str, KnobValue], space: ResolvedSpace) -> Config:
    """Return the start of a search with the changes that need no fresh process.

    The baseline if one of them cannot be made here: the others may help only with it.
    """
    live = {knob: value for knob, value in changes.items() if knob not in space.restart}
    held = {knob: (value,) for knob, value in space.fixed.items()}
    may_have = held | {knob: domain.values for knob, domain in space.domains.items()}
    if any(value not in may_have.get(knob, ()) for knob, value in live.items()):
        return space.baseline
    config = space.canonical(space.start.replace(**live))
    return space.baseline if space.conflicts(config) else config
