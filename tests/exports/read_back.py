"""``python -m tests.exports.read_back TRACKER RUN``: log a result, and keep what the library says.

The libraries start processes and threads and set signals, so they work in a process for themselves.
"""

import json
import sys
from pathlib import Path
from typing import Any

import autotune
from autotune.results.result import SearchResult

Seen = dict[str, dict[str, Any]]
LOADED_EARLY = {"mlflow", "wandb", "tensorboard", "IPython"} & set(sys.modules)


def mlflow(result: SearchResult) -> Seen:
    """Read params, metrics and tags from the store."""
    import mlflow as library

    with library.start_run(run_name="training") as active:
        autotune.log(result, to="mlflow")
        assert library.active_run() is not None, "the user's run stays open"
    data = library.MlflowClient().get_run(active.info.run_id).data
    return {"params": {**data.params, **data.tags}, "metrics": data.metrics}


def wandb(result: SearchResult) -> Seen:
    """Read config and summary of the open run; only a server would show its artifacts."""
    import wandb as library

    with library.init(name="training") as active:
        autotune.log(result, to="wandb")
        assert library.run is active, "the user's run stays open"
        summary: Any = active.summary
        return {"params": dict(active.config), "metrics": dict(summary._as_dict())}


def tensorboard(result: SearchResult) -> Seen:
    """Read scalars, texts and hparams with TensorBoard's own reader."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.plugins.hparams.plugin_data_pb2 import HParamsPluginData

    Path("events").mkdir()
    autotune.log(result, to="tensorboard", folder="events")
    assert "torch" not in sys.modules, "event files are written without torch"
    events = EventAccumulator("events").Reload()
    (raw,) = events.PluginTagToContent("hparams").values()
    hparams = HParamsPluginData.FromString(raw).session_start_info.hparams
    texts = {
        tag: events.Tensors(tag)[0].tensor_proto.string_val[0].decode()
        for tag in events.PluginTagToContent("text")
    }
    values = {name: value.string_value or value.number_value for name, value in hparams.items()}
    return {
        "params": {**values, **texts},
        "metrics": {
            tag: events.Tensors(tag)[0].tensor_proto.float_val[0]
            for tag in events.PluginTagToContent("scalars")
        },
    }


if __name__ == "__main__":
    assert not LOADED_EARLY, f"importing autotune imports {LOADED_EARLY}"
    name, run = sys.argv[1:]
    seen = {"mlflow": mlflow, "wandb": wandb, "tensorboard": tensorboard}[name](autotune.load(run))
    Path("seen.json").write_text(json.dumps(seen), encoding="utf-8")
