"""``python -m tests.exports.read_back TRACKER RUN``: log a result twice and read it back.

The libraries start processes and threads and set signals, so they work in a process for themselves.
The result is logged to a run that the library itself has opened, and by the command. What the
library then says of both runs is printed as JSON.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from typer.testing import CliRunner

import autotune
from autotune.cli.app import app
from autotune.errors import UsageError

Seen = dict[str, dict[str, Any]]
LOADED_EARLY = {"mlflow", "wandb", "tensorboard", "IPython"} & set(sys.modules)


def mlflow(run: str) -> Iterator[Seen]:
    """Read params, metrics, tags and artifacts from the store."""
    import mlflow as library

    result = autotune.load(run)
    with library.start_run(run_name="training") as active:
        library.log_param("lr", 0.1)
        autotune.log(result, to="mlflow")
        assert library.active_run() is not None, "the user's run stays open"
    yield _of_mlflow(library, active.info.run_id)
    _command("mlflow", run)
    (latest, _) = library.search_runs(output_format="list", order_by=["start_time DESC"])
    yield _of_mlflow(library, latest.info.run_id)
    with library.start_run():
        library.log_param("autotune/workers/after", 7)
        with pytest.raises(UsageError, match="mlflow did not take the result"):
            autotune.log(result, to="mlflow")


def _of_mlflow(library: Any, run_id: str) -> Seen:
    client = library.MlflowClient()
    found = client.get_run(run_id)
    names = [file.path for file in client.list_artifacts(run_id, "autotune")]
    return {
        "name": {"": found.info.run_name},
        "params": found.data.params,
        "metrics": found.data.metrics,
        "tags": {k: v for k, v in found.data.tags.items() if not k.startswith("mlflow.")},
        "files": {
            Path(name).name: library.artifacts.load_text(f"{found.info.artifact_uri}/{name}")
            for name in names
        },
    }


def wandb(run: str) -> Iterator[Seen]:
    """Read config and summary of the open run; only a server would show its artifacts."""
    import wandb as library

    result = autotune.load(run)
    with library.init(name="training") as active:
        active.config["lr"] = 0.1
        autotune.log(result, to="wandb")
        assert library.run is active, "the user's run stays open"
        yield {
            "name": {"": active.name},
            "config": dict(active.config),
            "metrics": dict(cast("Any", active.summary)._as_dict()),
            "files": {},
        }
    _command("wandb", run)


def tensorboard(run: str) -> Iterator[Seen]:
    """Read scalars, texts and hparams with TensorBoard's own reader."""
    result = autotune.load(run)
    Path("events").mkdir()
    autotune.log(result, to="tensorboard", folder="events")
    yield _of_tensorboard(Path("events"))
    _command("tensorboard", run)
    yield _of_tensorboard(result.run_dir / "tensorboard")
    assert "torch" not in sys.modules, "event files are written without torch"


def _of_tensorboard(folder: Path) -> Seen:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    events = EventAccumulator(str(folder)).Reload()
    (raw,) = events.PluginTagToContent("hparams").values()
    hparams = HParamsPluginData.FromString(raw).session_start_info.hparams
    texts = {
        tag: events.Tensors(tag)[0].tensor_proto.string_val[0].decode()
        for tag in events.PluginTagToContent("text")
    }
    best = texts.pop("autotune/best.yaml")
    return {
        "name": {"": folder.name},
        "params": {
            name: value.string_value or value.number_value for name, value in hparams.items()
        },
        "metrics": {
            tag: events.Tensors(tag)[0].tensor_proto.float_val[0]
            for tag in events.PluginTagToContent("scalars")
        },
        "tags": texts,
        "files": {"best.yaml": "".join(line[4:] for line in best.splitlines(keepends=True))},
    }


def _command(name: str, run: str) -> None:
    done = CliRunner().invoke(app, ["export", "--to", name, run])
    assert done.exit_code == 0, done.output
    said = "tensorboard" if name == "tensorboard" else "run 'train'"
    assert said in done.stdout, done.output


def main() -> None:
    """Print what was read back, a list with an entry for each run."""
    name, run = sys.argv[1:]
    assert not LOADED_EARLY, f"importing autotune and its commands imports {LOADED_EARLY}"
    seen = [*{"mlflow": mlflow, "wandb": wandb, "tensorboard": tensorboard}[name](run)]
    Path("seen.json").write_text(json.dumps(seen), encoding="utf-8")


if __name__ == "__main__":
    main()
