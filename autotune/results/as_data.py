"""A result as plain data with stable keys, for ``--json`` and for the report."""

from __future__ import annotations

from typing import Any

from autotune.measurement.learning.training_trace import NO_TIME
from autotune.results.result import SearchResult
from autotune.results.verdict import changes_of


def as_data(result: SearchResult) -> dict[str, Any]:
    """Return a result as data that JSON can hold; ``cli/SKILL.md`` explains the keys.

    A row of ``trials`` is that of ``SearchResult.trials``, with ``changes`` for all knobs, and
    without what is unknown.
    """
    knobs = set(result.baseline)
    first_step_s = None if result.facts is None else result.facts.first_step_s
    return {
        "finding": str(result.finding),
        "reason": result.reason,
        "run": str(result.run_dir),
        "seconds": round(result.seconds, 1),
        "first_step_s": None if first_step_s is None else round(first_step_s, 2),
        "best": result.best_file().model_dump(mode="json"),
        "claim": [
            {
                "speedup": round(one.ratio.interval.estimate, 4),
                "error_pct": round(100 * one.ratio.error, 2),
                "rounds": one.rounds,
                "starts_as_written": one.starts_as_written,
                "of_search": one.is_of_search,
            }
            for one in result.claim
        ],
        "untried": {**result.refused, **dict.fromkeys(result.untried, NO_TIME)},
        "trials": [
            {
                **{k: v for k, v in row.items() if k not in knobs and v not in {None, ""}},
                "changes": changes_of(record.config, result.baseline),
            }
            for row, record in zip(result.trials, result.records, strict=True)
        ],
    }
