"""Weights & Biases: config, summary and an artifact of a run, online or offline."""

from __future__ import annotations

import re
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from autotune.errors import UsageError
from autotune.integrations.tracked_result import PREFIX, TrackedResult
from autotune.integrations.trackers.base import Logged, Tracker

OTHER = re.compile(r"[^\w\-.]")  # docs.wandb.ai: what the name of an artifact may not hold


class WeightsAndBiases(Tracker):
    """Logs to a run of W&B.

    Figures go to the run's summary, because a row of its history would move the run's step. Tags of
    W&B are single words for filters, so what the result is about goes to the config.
    """

    name = "wandb"
    tool = "W&B"
    module = "wandb"
    extra = "wandb"

    def _log(self, library: Any, result: TrackedResult, run: object) -> Logged:
        active: Any = library.run if run is None else run
        if active is None:
            raise UsageError(
                "No run of W&B is active. Log after 'wandb.init()', or name a run: "
                "autotune.log(result, to='wandb', run=run)."
            )
        if not isinstance(active, library.Run):
            raise UsageError(f"A run of W&B is what wandb.init() returns, not {run!r}.")
        # A later result of the same run replaces the earlier one
        active.config.update({**result.params, **result.tags}, allow_val_change=True)
        active.summary.update(dict(result.metrics))
        active.tags = (*(active.tags or ()), PREFIX.rstrip("/"))
        artifact = library.Artifact(f"autotune-{OTHER.sub('_', result.search)}", "autotune-result")
        for name, text in result.files.items():
            with artifact.new_file(name, encoding="utf-8") as file:
                file.write(text)
        active.log_artifact(artifact)
        where = f"in {active.dir}" if active.offline else f"at {active.url}"
        return Logged(f"run '{active.name}' {where}")

    def _start(
        self, library: Any, result: TrackedResult, folder: Path
    ) -> AbstractContextManager[object]:
        started: AbstractContextManager[object] = library.init(
            name=result.search, job_type="autotune"
        )
        return started

    def _refusals(self, library: Any) -> tuple[type[Exception], ...]:
        return (library.Error,)
