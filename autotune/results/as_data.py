"""A result as plain data with stable keys, for ``--json`` and for the report."""

from __future__ import annotations

from typing import Any

from autotune.results.result import SearchResult
from autotune.results.verdict import changes_of


def as_data(result: SearchResult) -> dict[str, Any]:
    """Return a result as data that JSON can hold.

    Returns:
        ``finding``, ``reason``, ``run``, ``seconds``, ``best`` (the content of best.yaml) and
        ``trials``: a row for each trial, as in ``SearchResult.trials``, but with ``changes`` in
        place of all knobs, and without what is unknown.
    """
    knobs = set(result.baseline)
    return {
        "finding": str(result.finding),
        "reason": result.reason,
        "run": str(result.run_dir),
        "seconds": round(result.seconds, 1),
        "best": result.best_file().model_dump(mode="json"),
        "trials": [
            {
                **{k: v for k, v in row.items() if k not in knobs and v not in {None, ""}},
                "changes": changes_of(record.config, result.baseline),
            }
            for row, record in zip(result.trials, result.records, strict=True)
        ],
    }
