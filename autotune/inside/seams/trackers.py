"""The seam at experiment trackers and the Hugging Face hub: nothing of a trial leaves the machine.

Covered, beside what ``program/trackers.py`` switches off by the environment: arguments in the
program's own code that override it (W&B, Neptune, SwanLab, Trackio, Aim, DVCLive, CodeCarbon,
tensorboardX), MLflow on any server or data base, and all that changes repositories of the Hugging
Face hub. Downloads go on. The loggers of Lightning and the callbacks of transformers use these
libraries. Not covered: litlogger; ClearML and Comet where the program switches them on by calls;
``git push``; MLflow runs and experiments of the server's that a program takes up by their ids.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from functools import partial, wraps
from inspect import signature
from pathlib import Path
from types import ModuleType
from typing import Any

from autotune.inside.seams.after_import import AfterImport
from autotune.inside.seams.base import Patches, Seam

logger = logging.getLogger("autotune")

Choose = Callable[[Path, object], object]  # by a folder of the trial's own, and the program's value


def _always(value: object) -> Choose:
    return lambda _folder, _given: value


def _in_folder(name: str) -> Choose:
    """Return a choice of a place in the trial's folder; different places stay different."""

    def choose(folder: Path, given: object) -> str:
        digest = hashlib.sha256(str(given).encode()).hexdigest()[:8]
        return str(folder / name / digest)

    return choose


@dataclass(frozen=True)
class _Start:
    """Where runs of a tracker start, and the arguments that keep one on this machine.

    Attributes:
        module: The module that defines it.
        name: The function or method there.
        arguments: What each argument is in a trial; those that a version does not take are left
            out.
    """

    module: str
    name: str
    arguments: Mapping[str, Choose] = field(default_factory=dict)


_OFF = {"mode": _always("disabled")}
_DEBUG = {"mode": _always("debug")}
_NOTHING = _always(None)
# Read in the sources of wandb 0.31, neptune 1.14, neptune-scale 0.30, swanlab 0.10, trackio 0.43,
# aim 3.29, dvclive 3.49, codecarbon 3.3 and tensorboardX 2.6.
STARTS = (
    _Start("wandb.sdk.wandb_init", "init", _OFF),
    _Start("neptune.metadata_containers.run", "Run.__init__", _DEBUG),
    _Start("neptune.metadata_containers.model", "Model.__init__", _DEBUG),
    _Start("neptune.metadata_containers.model_version", "ModelVersion.__init__", _DEBUG),
    _Start("neptune.metadata_containers.project", "Project.__init__", _DEBUG),
    _Start("neptune_scale.api.run", "Run.__init__", _OFF),
    _Start("swanlab.sdk.cmd.init", "init", _OFF),
    _Start(
        "trackio",
        "init",
        dict.fromkeys(
            ("space_id", "server_url", "dataset_id", "bucket_id", "webhook_url"), _NOTHING
        ),
    ),
    _Start("aim.sdk.run", "Run.__init__", {"repo": _in_folder("aim")}),
    _Start(
        "dvclive.live",
        "Live.__init__",
        {"dir": _in_folder("dvclive"), "save_dvc_exp": _always(value=False), "dvcyaml": _NOTHING},
    ),
    _Start(
        "codecarbon.emissions_tracker",
        "BaseEmissionsTracker.__init__",
        {"output_methods": _always(())},
    ),
    _Start("tensorboardX.writer", "SummaryWriter.__init__", {"logdir": _in_folder("tensorboardX")}),
    # A run that the server knows by this id is not in the trial's own store.
    _Start(
        "mlflow.tracking.fluent",
        "start_run",
        dict.fromkeys(("run_id", "experiment_id", "parent_run_id"), _NOTHING),
    ),
)

# Variables by which a program sends its runs somewhere: they go, as the arguments do.
DESTINATIONS = (
    "MLFLOW_RUN_ID",
    "MLFLOW_EXPERIMENT_ID",
    "TRACKIO_SPACE_ID",
    "TRACKIO_SERVER_URL",
    "TRACKIO_DATASET_ID",
    "TRACKIO_BUCKET_ID",
    "TRACKIO_WEBHOOK_URL",
)

# Variables that say where a tracker keeps its files.
PLACES = ("TRACKIO_DIR", "NEPTUNE_DATA_DIRECTORY", "NEPTUNE_LOG_DIRECTORY")

# HfApi's methods are named by what they do; these change something on the hub. sync_bucket goes
# either way, and uploads by batch_bucket_files.
HUB_VERBS = (
    *("accept", "add", "batch", "cancel", "change", "comment", "copy", "create", "delete"),
    *("disable", "duplicate", "edit", "enable", "grant", "hide", "merge", "move", "pause"),
    *("permanently", "preupload", "reject", "rename", "request", "rerun", "restart", "resume"),
    *("run", "scale", "set", "super", "suspend", "trigger", "unlike", "update", "upload"),
)
HUB_COMMITS = frozenset(
    {
        "create_commit",
        "delete_file",
        "delete_files",
        "delete_folder",
        "upload_file",
        "upload_folder",
    }
)
NOT_A_CHANGE = "run_as_future"
NO_COMMIT = "0" * 40


class TrackersSeam(Seam):
    """Keeps what a program logs and uploads on this machine, in a folder of the trial's.

    Args:
        folder: Where trackers write that have to write somewhere; deleted with the trial's files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._patches = Patches()
        self._imports = AfterImport()
        self._environment: dict[str, str | None] = {}
        self._told: set[str] = set()

    def install(self) -> None:
        """Wait for the libraries, which the program may or may not import."""
        for start in STARTS:
            self._imports.wait_for(start.module, partial(self._keep, start))
        for package, kind in (("_tracking_service", "tracking"), ("_model_registry", "registry")):
            self._imports.wait_for(f"mlflow.tracking.{package}.registry", self._keep_stores)
            uri = partial(self._tell_place, f"get_{kind}_uri")
            self._imports.wait_for(f"mlflow.tracking.{package}.utils", uri)
        self._imports.wait_for("huggingface_hub.hf_api", self._keep_uploads)
        for name in DESTINATIONS:
            self._set_variable(name, None)
        self._set_variable("MLFLOW_TRACKING_URI", self._mlflow_uri)  # for processes it starts
        for name in PLACES:
            self._set_variable(name, str(self._folder / name.lower()))

    def remove(self) -> None:
        """Put everything back as it was."""
        self._imports.remove()
        self._patches.undo()
        for name, value in self._environment.items():
            _put(name, value)
        self._environment.clear()

    @property
    def _mlflow_uri(self) -> str:
        return (self._folder / "mlflow").absolute().as_uri()

    def _set_variable(self, name: str, value: str | None) -> None:
        self._environment.setdefault(name, os.environ.get(name))
        _put(name, value)

    def _keep(self, start: _Start, module: ModuleType) -> None:
        """Give a tracker the arguments of a trial, whatever the program gives it."""
        owner, _, method = start.name.rpartition(".")
        place: Any = getattr(module, owner, None) if owner else module
        original = getattr(place, method, None)
        if original is None:  # a version that starts its runs elsewhere
            logger.warning("autotune: %s.%s is unknown: not kept", start.module, start.name)
            return
        taken = signature(original)

        @wraps(original)
        def begin(*args: Any, **kwargs: Any) -> Any:
            bound = taken.bind_partial(*args, **kwargs)
            for name, choose in start.arguments.items():
                if name in taken.parameters:
                    bound.arguments[name] = choose(self._folder, bound.arguments.get(name))
            return original(*bound.args, **bound.kwargs)

        self._patches.replace(place, method, begin)

    def _keep_stores(self, module: ModuleType) -> None:
        """Let MLflow's clients find one store of files behind every address."""
        for name, places in (("TrackingStoreRegistry", 1), ("ModelRegistryStoreRegistry", 2)):
            registry = getattr(module, name, None)
            if registry is not None:
                self._patches.replace(registry, "get_store", self._store_by(registry, places))

    def _store_by(self, registry: Any, places: int) -> Callable[..., Any]:
        original, uri = registry.get_store, self._mlflow_uri

        def get_store(store_registry: Any, *_args: Any, **_kwargs: Any) -> Any:
            self._tell("MLflow")
            return original(store_registry, *[uri] * places)

        return get_store

    def _tell_place(self, name: str, module: ModuleType) -> None:
        """Let MLflow itself know the store: it acts by the kind of address."""
        if hasattr(module, name):
            self._patches.replace(module, name, lambda: self._mlflow_uri)

    def _keep_uploads(self, module: ModuleType) -> None:
        """Let what changes the hub return what it would, and do nothing."""
        api = module.HfApi
        names = [
            name
            for name, value in vars(api).items()
            if callable(value) and name.split("_")[0] in HUB_VERBS and name != NOT_A_CHANGE
        ]
        for name in names:
            self._patches.replace(api, name, self._kept_upload(module, name, getattr(api, name)))
            if name in vars(module):  # the functions are methods of one object
                self._patches.replace(module, name, getattr(module.api, name))

    def _kept_upload(
        self, module: ModuleType, name: str, original: Callable[..., Any]
    ) -> Callable[..., Any]:
        taken = signature(original)

        @wraps(original)
        def keep(api: Any, *args: Any, **kwargs: Any) -> Any:
            given = taken.bind(api, *args, **kwargs).arguments
            self._tell(f"HfApi.{name}")
            result = _hub_result(module, name, api.endpoint, given)
            if not given.get("run_as_future"):
                return result
            done: Future[Any] = Future()
            done.set_result(result)
            return done

        return keep

    def _tell(self, what: str) -> None:
        """Say once for each kind what does not happen."""
        if what not in self._told:
            self._told.add(what)
            logger.warning("autotune: not uploaded in a trial (%s)", what)


def _hub_result(module: ModuleType, name: str, endpoint: str, given: Mapping[str, Any]) -> Any:
    """Return what a method of HfApi gives back: a repository, a commit, or nothing."""
    from huggingface_hub.constants import REPO_TYPES_URL_PREFIXES

    repo_id = str(given.get("repo_id", ""))
    if "/" not in repo_id:
        repo_id = f"trial/{repo_id}"  # the hub would put the user's name before it
    url = f"{endpoint}/{REPO_TYPES_URL_PREFIXES.get(str(given.get('repo_type')), '')}{repo_id}"
    if name == "create_repo":
        return module.RepoUrl(url, endpoint=endpoint)
    if name in HUB_COMMITS:
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


def _put(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value
