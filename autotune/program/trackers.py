"""Environment variables that disable W&B, Comet and other experiment trackers during trials.

Without them every trial would appear as a run among the user's experiments. They reach every
process that inherits them. What a program's code says against them (``wandb.init(mode="online")``,
``mlflow.set_tracking_uri("http://...")``), and uploads, ``inside/seams/trackers.py`` handles.
"""

from __future__ import annotations

from pathlib import Path

TRACKERS_OFF = {
    # docs.wandb.ai/models/track/environment-variables
    "WANDB_MODE": "disabled",
    # docs.coreweave.com/products/wandb/weave/guides/tracking/trace-disable
    "WEAVE_DISABLED": "true",
    # config_map.py and _online.py of comet_ml 3.58: `disabled`, which is no network communication
    "COMET_AUTO_LOG_DISABLE": "true",
    # clear.ml/docs: "Offline Mode"
    "CLEARML_OFFLINE_MODE": "1",
    # docs.neptune.ai/logging/modes: neither stored nor sent; neptune-scale's word is the seam's
    "NEPTUNE_MODE": "debug",
    # docs.swanlab.cn/en/api/cli-swanlab-offline
    "SWANLAB_MODE": "disabled",
    # dvc.org/doc/user-guide/env: no live experiments even where a token is set
    "DVC_STUDIO_OFFLINE": "true",
    # github.com/polyaxon/traceml, README: "Offline usage"
    "POLYAXON_OFFLINE": "true",
    # core/config.py of codecarbon 3.3: its arguments, after CODECARBON_
    "CODECARBON_SAVE_TO_API": "false",
    # mlflow.org/docs: usage reports; file_store.py of mlflow 3.17: the seam's store is one of files
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ALLOW_FILE_STORE": "true",
    # huggingface.co/docs/huggingface_hub/package_reference/environment_variables
    "HF_HUB_DISABLE_TELEMETRY": "1",
}

# They name where runs go on a server, and are unset during a trial.
DESTINATIONS = (
    *("MLFLOW_RUN_ID", "MLFLOW_EXPERIMENT_ID"),
    *("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL", "TRACKIO_DATASET_ID"),
    *("TRACKIO_BUCKET_ID", "TRACKIO_WEBHOOK_URL"),
)


def local_places(folder: Path) -> dict[str, str]:
    """Return variables that make trackers without a switch write below a folder of the trial."""
    names = ("TRACKIO_DIR", "NEPTUNE_DATA_DIRECTORY", "NEPTUNE_LOG_DIRECTORY")
    places = {name: str(folder / name.lower()) for name in names}
    return {**places, "MLFLOW_TRACKING_URI": (folder / "mlflow").absolute().as_uri()}
