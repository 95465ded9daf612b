"""Keeps experiment trackers and the Hugging Face hub from uploading anything during a trial.

Environment variables (``program/trackers.py``) switch trackers off; this seam overrules arguments
in the program's code, MLflow's servers, and everything that changes repositories of the Hugging
Face hub. Downloads still work. The loggers of Lightning and the callbacks of transformers use these
libraries, so they are covered, too.

Not covered: litlogger; ClearML and Comet if the program switches them on by calls; ``git push``;
MLflow runs and experiments on a server that the program continues by their ids.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from functools import partial
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any

from autotune.inside.hubs.after_import import AfterImport
from autotune.inside.hubs.patches import Patches, Seam
from autotune.program.trackers import DESTINATIONS, local_places

logger = logging.getLogger("autotune")

PLACE, STORE = object(), object()  # stand for the trial's folder, and for MLflow's store in it
# The arguments that keep a tracker's run on this machine, by module and function. Those that the
# installed version does not take are left out. Read in the sources of wandb 0.31, neptune 1.14,
# neptune-scale 0.30, swanlab 0.10, trackio 0.43, aim 3.29, dvclive 3.49, codecarbon 3.3,
# tensorboardX 2.6 and mlflow 3.17.
ARGUMENTS: Mapping[tuple[str, str], Mapping[str, object]] = {
    ("wandb.sdk.wandb_init", "init"): {"mode": "disabled"},
    **{
        (f"neptune.metadata_containers.{module}", f"{name}.__init__"): {"mode": "debug"}
        for module, name in (
            ("run", "Run"),
            ("model", "Model"),
            ("model_version", "ModelVersion"),
            ("project", "Project"),
        )
    },
    ("neptune_scale.api.run", "Run.__init__"): {"mode": "disabled"},
    ("swanlab.sdk.cmd.init", "init"): {"mode": "disabled"},
    ("trackio", "init"): dict.fromkeys(
        ("space_id", "server_url", "dataset_id", "bucket_id", "webhook_url")
    ),
    ("aim.sdk.run", "Run.__init__"): {"repo": PLACE},
    ("dvclive.live", "Live.__init__"): {"dir": PLACE, "save_dvc_exp": False, "dvcyaml": None},
    ("codecarbon.emissions_tracker", "BaseEmissionsTracker.__init__"): {"output_methods": ()},
    ("tensorboardX.writer", "SummaryWriter.__init__"): {"logdir": PLACE},
    # The trial's store has no run with an id from the server.
    ("mlflow.tracking.fluent", "start_run"): dict.fromkeys(
        ("run_id", "experiment_id", "parent_run_id")
    ),
    ("mlflow.tracking._tracking_service.registry", "TrackingStoreRegistry.get_store"): {
        "store_uri": STORE,
        "artifact_uri": STORE,
    },
    ("mlflow.tracking._model_registry.registry", "ModelRegistryStoreRegistry.get_store"): {
        "store_uri": STORE,
        "tracking_uri": STORE,
    },
}
# MLflow acts by the scheme of the address that these return.
ADDRESSES = (
    ("mlflow.tracking._tracking_service.utils", "get_tracking_uri"),
    ("mlflow.tracking._model_registry.utils", "get_registry_uri"),
)

# First words of those HfApi methods that change something on the hub. sync_bucket is not among
# them, because it may also download; it uploads through batch_bucket_files, which is.
HUB_VERBS = (
    *("accept", "add", "batch", "cancel", "change", "comment", "copy", "create", "delete"),
    *("disable", "duplicate", "edit", "enable", "grant", "hide", "merge", "move", "pause"),
    *("permanently", "preupload", "reject", "rename", "request", "rerun", "restart", "resume"),
    *("run", "scale", "set", "super", "suspend", "trigger", "unlike", "update", "upload"),
)
NOT_A_CHANGE = "run_as_future"
NO_COMMIT = "0" * 40


class TrackersSeam(Seam):
    """Keeps what a program logs and uploads on this machine.

    A library is patched as soon as the program imports it. The functions run on any thread.

    Args:
        folder: The folder for trackers that cannot be switched off; deleted with the trial's files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._variables = local_places(folder)
        self._before: dict[str, str | None] = {}
        self._patches = Patches()
        self._imports = AfterImport()

    def install(self) -> None:
        """Set the process's environment, and patch each library when the program imports it."""
        for name in (*DESTINATIONS, *self._variables):
            self._before[name] = os.environ.pop(name, None)
        os.environ.update(self._variables)
        for (module, name), arguments in ARGUMENTS.items():
            self._imports.wait_for(module, partial(self._overrule, name, arguments))
        for module, name in ADDRESSES:
            self._imports.wait_for(module, partial(self._tell_store, name))
        self._imports.wait_for("huggingface_hub.hf_api", self._keep_uploads)

    def remove(self) -> None:
        """Put the libraries and the environment back as they were."""
        self._imports.remove()
        self._patches.undo()
        for name in self._before:
            os.environ.pop(name, None)
        os.environ.update({n: value for n, value in self._before.items() if value is not None})

    @property
    def _store(self) -> str:
        return self._variables["MLFLOW_TRACKING_URI"]

    def _overrule(self, path: str, arguments: Mapping[str, object], module: ModuleType) -> None:
        """Patch a tracker's function to use a trial's arguments, not the program's.

        If the function is not in the module, the user is warned: the tracker stays active then.
        """
        owner, _, name = path.rpartition(".")
        place: Any = getattr(module, owner, None) if owner else module
        original = None if place is None else getattr(place, name, None)
        if original is None:  # a version that starts its runs elsewhere
            logger.warning(
                "autotune: this version of %s has no %s.%s, so autotune cannot switch it off and "
                "trials may upload",
                module.__name__.partition(".")[0],
                module.__name__,
                path,
            )
            return
        taken = signature(original)
        stand_for = {PLACE: str(self._folder / module.__name__), STORE: self._store}
        values = {
            key: stand_for.get(value, value)
            for key, value in arguments.items()
            if key in taken.parameters
        }

        def begin(original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
            bound = taken.bind_partial(*args, **kwargs)
            bound.arguments.update(values)
            return original(*bound.args, **bound.kwargs)

        self._patches.wrap(place, name, begin)

    def _tell_store(self, name: str, module: ModuleType) -> None:
        if hasattr(module, name):
            self._patches.replace(module, name, lambda: self._store)

    def _keep_uploads(self, module: ModuleType) -> None:
        """Replace the methods that change the hub by ones that only return a fitting result."""
        api = module.HfApi
        for name, value in list(vars(api).items()):
            if callable(value) and name.split("_")[0] in HUB_VERBS and name != NOT_A_CHANGE:
                self._patches.wrap(api, name, partial(_keep, module))
                if name in vars(module):  # module-level functions are bound methods of module.api
                    self._patches.replace(module, name, getattr(module.api, name))


def _keep(
    module: ModuleType, original: Callable[..., Any], api: Any, *args: Any, **kwargs: Any
) -> Any:
    taken = signature(original)
    given = taken.bind(api, *args, **kwargs).arguments
    result = _hub_result(module, taken, api.endpoint, given)
    if not given.get("run_as_future"):
        return result
    done: Future[Any] = Future()
    done.set_result(result)
    return done


def _hub_result(module: ModuleType, taken: Any, endpoint: str, given: Mapping[str, Any]) -> Any:
    """Return what a method of HfApi would return: a repository, a commit, or None."""
    from huggingface_hub.constants import REPO_TYPES_URL_PREFIXES

    repo_id = str(given.get("repo_id", ""))
    if "/" not in repo_id:
        repo_id = f"trial/{repo_id}"  # the hub would prefix the user's name
    url = f"{endpoint}/{REPO_TYPES_URL_PREFIXES.get(str(given.get('repo_type')), '')}{repo_id}"
    kind = str(taken.return_annotation)
    if "RepoUrl" in kind:
        return module.RepoUrl(url, endpoint=endpoint)
    if "CommitInfo" in kind:
        known = signature(module.CommitInfo.__init__).parameters
        place = {"_endpoint": endpoint} if "_endpoint" in known else {}
        return module.CommitInfo(
            commit_url=f"{url}/commit/{NO_COMMIT}",
            commit_message=str(given.get("commit_message") or ""),
            commit_description=str(given.get("commit_description") or ""),
            oid=NO_COMMIT,
            **place,
        )
    return None
