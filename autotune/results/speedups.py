"""Speedups: what all visits of a search say about each of its configs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autotune.measurement.interval import Interval
from autotune.measurement.run_mode import RunMode
from autotune.measurement.stream import StreamModel
from autotune.measurement.visit import Visit
from autotune.program.config import Config
from autotune.results.record import TrialRecord


def reread(records: Sequence[TrialRecord], model: StreamModel) -> list[TrialRecord]:
    """Return records with the speedups that all of their visits show together.

    A later visit of the baseline, or of another config at another pace of the machine, says more
    about earlier trials as well. Records of earlier versions of autotune have no visits and keep
    their speedups.

    Args:
        records: All of a search; the first is the baseline's.
        model: Of their visits, ``seen_in(records)``. Of a config whose visits it left out, because
            they are many and old, the record keeps the speedup that it has.
    """
    known = set(model.configs)
    by_mode: dict[RunMode, dict[Config, None]] = {}
    for record in records:
        if record.visits and (_key(record) in known or record.speedup is None):
            by_mode.setdefault(record.visits[-1].mode, {})[record.config] = None
    found: dict[tuple[Config, RunMode], Interval | None] = {}
    for mode, configs in by_mode.items():
        keys = [(config, mode) for config in configs]
        found |= dict(zip(keys, model.intervals(keys, (records[0].config, mode)), strict=True))
    return [
        replace(record, speedup=found[_key(record)])
        if record.visits and _key(record) in found
        else record
        for record in records
    ]


def seen_in(records: Sequence[TrialRecord]) -> list[tuple[tuple[Config, RunMode], Visit]]:
    """Return all visits of a search, each with its config and the run mode of its process.

    Visits of different run modes do not compare: an epoch's end belongs to some of them only.
    """
    seen = []
    for record in records:
        seen += [((record.config, visit.mode), visit) for visit in record.visits]
        seen += [((records[0].config, visit.mode), visit) for visit in record.baseline_visits]
    return seen


def _key(record: TrialRecord) -> tuple[Config, RunMode]:
    return record.config, record.visits[-1].mode
