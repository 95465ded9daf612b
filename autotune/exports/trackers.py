"""Trackers: what a search found, in a run of MLflow, Weights & Biases or TensorBoard.

A tracker is one function. It logs to the run that is active in this process, which stays open, or
to a new one, and imports its library where it is called.
"""

from __future__ import annotations

import importlib
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from autotune.errors import UsageError, named
from autotune.program.config import KnobValue
from autotune.results.bestfile import RESULT
from autotune.results.data.result import as_text
from autotune.results.result import SearchResult
from autotune.results.wording import machine

# Before all names: an active run has params and metrics that the user has logged
PREFIX = "autotune/"
REPORT = "report.html"
SIZES = ("host_bytes", "device_allocated_bytes", "device_reserved_bytes", "device_used_bytes")
PASSWORD = re.compile(r"//[^/@]*@")  # a store may be postgresql://user:password@host
# What a name may not hold: mlflow.org/docs (a variable's knob begins with "$"), docs.wandb.ai
NOT_MLFLOW, NOT_WANDB = re.compile(r"[^\w\-. :/]"), re.compile(r"[^\w\-.]")


@dataclass(frozen=True)
class Tracked:
    """A search's result in the terms that experiment trackers share.

    Attributes:
        params: The changed knobs, each as ``autotune/KNOB/before`` and ``autotune/KNOB/after``;
            empty if nothing is recommended.
        metrics: Speedup with the bounds of its 95 % interval, samples/s and peak memory before and
            after, and what the search cost. What is unknown is left out.
    """

    search: str
    params: Mapping[str, KnobValue]
    metrics: Mapping[str, float]
    tags: Mapping[str, str]
    files: Mapping[str, str]


def tracked(result: SearchResult, page: str) -> Tracked:
    """Return what a tracker gets of a result; nothing is read from the search's folder.

    Args:
        page: The report, as HTML.
    """
    params: dict[str, KnobValue] = {}
    for knob, after in result.changes.items():
        params |= {f"{PREFIX}{knob}/before": result.baseline[knob], f"{PREFIX}{knob}/after": after}
    tags = {
        "finding": str(result.finding),
        "reason": result.reason,
        "objective": str(result.head.options.goal.objective),
        "bottleneck": result.bottleneck,
        "program": str(result.head.program),
        "machine": machine(result.hardware),
        "search": result.run_dir.name,
        "created": result.head.created,
    }
    return Tracked(
        search=result.run_dir.name,
        params=params,
        metrics={f"{PREFIX}{name}": float(value) for name, value in _metrics(result)},
        tags={f"{PREFIX}{name}": text for name, text in tags.items() if text},
        files=_files(result, page),
    )


def _files(result: SearchResult, page: str) -> dict[str, str]:
    found = result.own_file
    files = {REPORT: page, RESULT: as_text(result, Path(found.name))}
    if found.name != RESULT:
        files[found.name] = result.best_file().text(found.name)
    return files


def _metrics(result: SearchResult) -> Iterator[tuple[str, float]]:
    yield "speedup", result.speedup.estimate
    yield "speedup_low", result.speedup.low
    yield "speedup_high", result.speedup.high
    for side, rate, memory in zip(
        ("before", "after"), result.throughput, result.memory, strict=True
    ):
        yield f"samples_per_s_{side}", rate.estimate
        for name in SIZES:
            if (size := getattr(memory, name)) is not None:
                yield f"{name}_{side}", size
    yield "trials", len(result.records)
    yield "search_s", result.seconds


def log(result: SearchResult, to: str, page: str, folder: Path | None = None) -> str:
    """Log a result to a tracker, and return where people find it.

    Args:
        page: The report, as HTML.
        folder: Where TensorBoard's event file goes; None takes ``tensorboard`` in the search's
            folder. The others read from their environment variables where they log to.

    Raises:
        UsageError: There is no such tracker, its package is missing, or it refuses.
    """
    logs = named("tracker", to, TRACKERS)
    if folder is not None and to != "tensorboard":
        raise UsageError(f"{to} reads where to log to from its environment variables.")
    try:
        library = importlib.import_module(to)
    except ImportError as error:
        raise UsageError(f"{to} is not installed: pip install {to}.") from error
    refusals = (OSError, *(getattr(library, n) for n in REFUSALS if hasattr(library, n)))
    try:
        return logs(library, tracked(result, page), folder or result.run_dir / "tensorboard")
    except refusals as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        raise UsageError(f"{to} did not take the result: {lines[0]}") from error


def _mlflow(library: Any, found: Tracked, _: Path) -> str:
    """Log params, metrics, tags and artifacts; MLflow never changes a param that it has."""
    from mlflow.entities import Metric, Param, RunTag

    def its(name: str) -> str:
        return NOT_MLFLOW.sub("_", name)

    active, client = library.active_run(), library.MlflowClient()
    now_ms = time.time_ns() // 1_000_000
    # With MLFLOW_RUN_ID in the environment, start_run() goes on with that run
    with nullcontext(active) if active else library.start_run(run_name=found.search) as run:
        # One call: MLflow takes all or, where a param has another value already, nothing
        client.log_batch(
            run.info.run_id,
            metrics=[Metric(its(name), v, now_ms, 0) for name, v in found.metrics.items()],
            params=[Param(its(name), str(value)) for name, value in found.params.items()],
            tags=[RunTag(its(name), text) for name, text in found.tags.items()],
        )
        for name, text in found.files.items():
            client.log_text(run.info.run_id, text, f"{PREFIX}{name}")
        where = PASSWORD.sub("//", library.get_tracking_uri())
        return f"run '{run.info.run_name}' ({run.info.run_id}) at {where}"


def _wandb(library: Any, found: Tracked, _: Path) -> str:
    """Log config, summary and an artifact; a row of the history would move the run's step."""
    active = library.run
    with (
        nullcontext(active)
        if active
        else library.init(name=found.search, job_type="autotune") as run
    ):
        # A later result of the same run replaces the earlier one. Tags of W&B are single words for
        # filters, so what the result is about goes to the config
        run.config.update({**found.params, **found.tags}, allow_val_change=True)
        run.summary.update(dict(found.metrics))
        run.tags = (*(run.tags or ()), PREFIX.rstrip("/"))
        name = f"autotune-{NOT_WANDB.sub('_', found.search)}"
        artifact = library.Artifact(name, "autotune-result")
        for file_name, text in found.files.items():
            with artifact.new_file(file_name, encoding="utf-8") as file:
                file.write(text)
        run.log_artifact(artifact)
        return f"run '{run.name}' {f'in {run.dir}' if run.offline else f'at {run.url}'}"


def _tensorboard(_: Any, found: Tracked, folder: Path) -> str:
    """Log scalars, hparams and texts to an event file, without torch; no page is shown there."""
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.plugins.hparams.summary_v2 import hparams_pb
    from tensorboard.plugins.scalar.summary_v2 import scalar_pb
    from tensorboard.plugins.text.summary_v2 import text_pb
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    # Indented, because TensorBoard reads texts as Markdown
    texts = {
        f"{PREFIX}{name}": "".join(f"    {line}\n" for line in text.splitlines())
        for name, text in found.files.items()
        if name != REPORT
    }
    summaries = [
        *([hparams_pb(dict(found.params), trial_id=found.search)] if found.params else []),
        *(scalar_pb(name, value) for name, value in found.metrics.items()),
        *(text_pb(name, text) for name, text in {**found.tags, **texts}.items()),
    ]
    writer = EventFileWriter(str(folder))
    try:
        for summary in summaries:
            writer.add_event(Event(wall_time=time.time(), step=0, summary=summary))
    finally:
        writer.close()
    return str(folder)


TRACKERS: dict[str, Callable[[Any, Tracked, Path], str]] = {
    "mlflow": _mlflow,
    "wandb": _wandb,
    "tensorboard": _tensorboard,
}
# How the libraries say that they do not take something
REFUSALS = ("MlflowException", "Error")
