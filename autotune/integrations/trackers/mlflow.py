"""MLflow: params, metrics, tags and artifacts of a run."""

from __future__ import annotations

import re
import time
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from autotune.errors import UsageError
from autotune.integrations.tracked_result import PREFIX, TrackedResult
from autotune.integrations.trackers.base import Logged, Tracker

# mlflow.org/docs: names hold letters, digits, and these; a variable's knob begins with "$"
PASSWORD = re.compile(r"//[^/@]*@")  # a store may be postgresql://user:password@host
OTHER = re.compile(r"[^\w\-. :/]")


class MLflow(Tracker):
    """Logs to a run of MLflow, wherever its tracking URI points.

    MLflow never changes a param, so a second result with other values of the same knobs needs
    another run.
    """

    name = "mlflow"
    tool = "MLflow"
    module = "mlflow"
    extra = "mlflow"

    def _log(self, library: Any, result: TrackedResult, run: object) -> Logged:
        from mlflow.entities import Metric, Param, RunTag

        run_id, client = _run_id(library, run), library.MlflowClient()
        now_ms = time.time_ns() // 1_000_000
        # One call: MLflow takes all or, where a param has another value already, nothing
        client.log_batch(
            run_id,
            metrics=[Metric(_name(name), v, now_ms, 0) for name, v in result.metrics.items()],
            params=[Param(_name(name), str(value)) for name, value in result.params.items()],
            tags=[RunTag(_name(name), text) for name, text in result.tags.items()],
        )
        for name, text in result.files.items():
            client.log_text(run_id, text, f"{PREFIX}{name}")
        shown = client.get_run(run_id).info
        where = PASSWORD.sub("//", library.get_tracking_uri())
        return Logged(f"run '{shown.run_name}' ({run_id}) at {where}")

    def _start(
        self, library: Any, result: TrackedResult, folder: Path
    ) -> AbstractContextManager[object]:
        # With MLFLOW_RUN_ID in the environment, MLflow goes on with that run instead
        started: AbstractContextManager[object] = library.start_run(run_name=result.search)
        return started

    def _refusals(self, library: Any) -> tuple[type[Exception], ...]:
        return (library.MlflowException,)


def _run_id(library: Any, run: object) -> str:
    if isinstance(run, str):
        return run
    active: Any = library.active_run() if run is None else run
    if active is None:
        raise UsageError(
            "No run of MLflow is active. Log within 'with mlflow.start_run():', or name a run: "
            "autotune.log(result, to='mlflow', run=run_id)."
        )
    if not hasattr(active, "info"):
        raise UsageError(f"A run of MLflow is its id or what start_run() returns, not {run!r}.")
    return str(active.info.run_id)


def _name(name: str) -> str:
    return OTHER.sub("_", name)
