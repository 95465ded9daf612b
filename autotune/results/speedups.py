"""Speedups: what all visits of a search say about each of its configs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from autotune.measurement.run_mode import RunMode
from autotune.measurement.stream import StreamModel
from autotune.measurement.visit import Visit
from autotune.program.config import Config
from autotune.results.record import TrialRecord


def reread(records: Sequence[TrialRecord]) -> list[TrialRecord]:
    """Return records with the speedups that all of their visits show together.

    A later visit of the baseline, or of another config at another pace of the machine, says more
    about earlier trials as well. Records of earlier versions of autotune have no visits and keep
    their speedups.

    Args:
        records: All of a search; the first is the baseline's.
    """
    if not records:
        return []
    model, baseline = StreamModel(seen_in(records)), records[0].config
    return [_reread(record, model, baseline) for record in records]


def seen_in(records: Sequence[TrialRecord]) -> list[tuple[tuple[Config, RunMode], Visit]]:
    """Return all visits of a search, each with its config and the run mode of its process.

    Visits of different run modes do not compare: an epoch's end belongs to some of them only.
    """
    seen = []
    for record in records:
        seen += [((record.config, visit.mode), visit) for visit in record.visits]
        seen += [((records[0].config, visit.mode), visit) for visit in record.baseline_visits]
    return seen


def _reread(record: TrialRecord, model: StreamModel, baseline: Config) -> TrialRecord:
    if record.measurement is None or not record.visits:
        return record
    mode = record.visits[-1].mode
    found = model.speedup((record.config, mode), (baseline, mode))
    return record if found is None else replace(record, speedup=found)
