"""Keeps experiment trackers and the Hugging Face hub from uploading anything during a trial.

A trial is not one of the user's experiments, so it must not appear among them.
``program/trackers.py`` switches trackers off by environment variables; this seam covers what these
do not reach: arguments in the program's code that override them (W&B, Neptune, SwanLab, Trackio,
Aim, DVCLive, CodeCarbon, tensorboardX), MLflow on any server or database, and everything that
changes repositories of the Hugging Face hub. Downloads still work. The loggers of Lightning and the
callbacks of transformers use these libraries, so they are covered, too.

Not covered: litlogger; ClearML and Comet if the program switches them on by calls; ``git push``;
MLflow runs and experiments on a server that the program continues by their ids.
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

from autotune.inside.hubs.after_import import AfterImport
from autotune.inside.hubs.patches import Patches, Seam

logger = logging.getLogger("autotune")

# Returns an argument's value in a trial, by the trial's folder and the program's value.
Choose = Callable[[Path, object], object]


def _always(value: object) -> Choose:
    return lambda _folder, _given: value


def _in_folder(name: str) -> Choose:
    """Return a Choose that gives a path in the trial's folder.

    Different values of the program give different paths, so that runs are not mixed.
    """

    def choose(folder: Path, given: object) -> str:
        digest = hashlib.sha256(str(given).encode()).hexdigest()[:8]
        return str(folder / name / digest)

    return choose


@dataclass(frozen=True)
class _Start:
    """A function that starts a tracker's run, and arguments that keep the run on this machine.

    Attributes:
        module: The module that defines the function.
        name: The function, or ``Class.method``, in that module.
        arguments: The value of each replaced argument in a trial. Arguments that the installed
            version does not take are left out.
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
    # The trial's local store has no run with an id from the server.
    _Start(
        "mlflow.tracking.fluent",
        "start_run",
        dict.fromkeys(("run_id", "experiment_id", "parent_run_id"), _NOTHING),
    ),
)

# Environment variables that name a remote destination of runs; unset during a trial.
DESTINATIONS = (
    "MLFLOW_RUN_ID",
    "MLFLOW_EXPERIMENT_ID",
    "TRACKIO_SPACE_ID",
    "TRACKIO_SERVER_URL",
    "TRACKIO_DATASET_ID",
    "TRACKIO_BUCKET_ID",
    "TRACKIO_WEBHOOK_URL",
)

# Environment variables that name a tracker's local folder; set to one in the trial's folder.
PLACES = ("TRACKIO_DIR", "NEPTUNE_DATA_DIRECTORY", "NEPTUNE_LOG_DIRECTORY")

# First words of those HfApi methods that change something on the hub. sync_bucket is not among
# them, because it may also download; it uploads through batch_bucket_files, which is.
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
    """Keeps what a program logs and uploads on this machine.

    ``SeamSet`` installs it before a trial's program starts, and on muted ranks. A library is
    patched as soon as the program imports it. The patched functions run on any thread.

    Args:
        folder: The folder for trackers that cannot be switched off; deleted with the trial's files.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._patches = Patches()
        self._imports = AfterImport()
        self._environment: dict[str, str | None] = {}
        self._told: set[str] = set()

    def install(self) -> None:
        """Set environment variables now, and patch each library when the program imports it."""
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
        """Put the libraries and the environment back as they were."""
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
        """Patch the start of a tracker's run to use a trial's arguments, not the program's.

        If the function is not in the module, the user is warned: the tracker stays active then.
        """
        owner, _, method = start.name.rpartition(".")
        place: Any = getattr(module, owner, None) if owner else module
        original = getattr(place, method, None)
        if original is None:  # a version that starts its runs elsewhere
            logger.warning(
                "autotune: this version of %s has no %s.%s, so autotune cannot switch it off and "
                "trials may upload",
                start.module.partition(".")[0],
                start.module,
                start.name,
            )
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
        """Make MLflow's clients use one local file store, whatever address the program gives."""
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
        """Make MLflow report the local store's URI, because it acts by the URI's scheme."""
        if hasattr(module, name):
            self._patches.replace(module, name, lambda: self._mlflow_uri)

    def _keep_uploads(self, module: ModuleType) -> None:
        """Replace the methods that change the hub by ones that only return a fitting result."""
        api = module.HfApi
        names = [
            name
            for name, value in vars(api).items()
            if callable(value) and name.split("_")[0] in HUB_VERBS and name != NOT_A_CHANGE
        ]
        for name in names:
            self._patches.replace(api, name, self._kept_upload(module, name, getattr(api, name)))
            if name in vars(module):  # module-level functions are bound methods of module.api
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
        """Log what was not uploaded, once for each kind."""
        if what not in self._told:
            self._told.add(what)
            logger.warning("autotune: not uploaded in a trial (%s)", what)


def _hub_result(module: ModuleType, name: str, endpoint: str, given: Mapping[str, Any]) -> Any:
    """Return what a method of HfApi would return: a repository, a commit, or None.

    Args:
        module: ``huggingface_hub.hf_api``.
        name: The method.
        endpoint: The hub's address.
        given: The arguments of the call.
    """
    from huggingface_hub.constants import REPO_TYPES_URL_PREFIXES

    repo_id = str(given.get("repo_id", ""))
    if "/" not in repo_id:
        repo_id = f"trial/{repo_id}"  # the hub would prefix the user's name
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
