"""Command log: what a past search found, in the user's experiment tracker."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.exits import errors_told
from autotune.cli.messages import Messages
from autotune.cli.options import JsonOption, RunArgument
from autotune.errors import UsageError

TENSORBOARD = "tensorboard"  # the one whose runs are folders


def log(
    to: Annotated[
        str,
        typer.Option("--to", help="Tracker: mlflow, wandb or tensorboard.", show_default=False),
    ],
    run: RunArgument = None,
    logdir: Annotated[
        Path | None,
        typer.Option(help="Folder for TensorBoard. Default: 'tensorboard' in the run's folder."),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Log what a search found to MLflow, W&B or TensorBoard, in a new run named after it."""
    from autotune import api
    from autotune.integrations.tracked_result import tracked_result
    from autotune.integrations.trackers import tracker

    messages = Messages()
    with errors_told(messages):
        chosen = tracker(to)
        if logdir is not None and to != TENSORBOARD:
            raise UsageError(
                f"--logdir is TensorBoard's. Where {chosen.tool} logs to is set as for a training, "
                "by its environment variables."
            )
        found = api.load(run)
        result = tracked_result(found)
        with chosen.started(result, logdir or found.run_dir / TENSORBOARD) as started:
            logged = chosen.log(result, started)
    if as_json:
        sys.stdout.write(f"{json.dumps(asdict(logged), indent=1)}\n")
        return
    sys.stdout.write(f"{logged.to}\n")
    for what, reason in logged.left_out.items():
        messages.warn(f"Left out: {what} ({reason}).")
