"""Trackers and the hub: what a program logs and uploads reaches no server while the seam is in."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import HfApi, hf_api

from autotune.inside.seams.trackers import DESTINATIONS, TrackersSeam
from autotune.program.trackers import TRACKERS_OFF

# The trackers themselves are large (mlflow-skinny brings 40 packages); where one is installed, the
# program below runs on it, elsewhere stand-ins show that the seam finds its place. Run by hand on
# mlflow-skinny 3.17.2, wandb 0.31.0 and tensorboardX 2.6.5.
PROGRAMS = {
    "mlflow": """
import mlflow, os
from mlflow import MlflowClient
url = os.environ["SERVER"]
mlflow.set_tracking_uri(url)
mlflow.set_experiment("mine")
with mlflow.start_run() as run:
    mlflow.log_param("lr", 1)
    mlflow.log_metric("loss", 0.5, step=1)
    mlflow.log_text("text", "a.txt")
client = MlflowClient(tracking_uri=url)
mine = client.get_experiment_by_name("mine")
again = client.create_run(mine.experiment_id)
client.log_metric(again.info.run_id, "loss", 1.0)
client.create_registered_model("model")
assert run.info.artifact_uri.startswith("file:")
""",
    "wandb": """
import wandb
wandb.login(key="a" * 40)
wandb.init(project="mine", mode="online")
wandb.log({"loss": 0.5})
wandb.finish()
""",
    "tensorboardX": """
from tensorboardX import SummaryWriter
with SummaryWriter("runs/mine") as writer:
    writer.add_scalar("loss", 0.5, 1)
""",
}
UNDER_THE_SEAM = """
import runpy, sys
from pathlib import Path
from autotune.inside.seams.trackers import TrackersSeam
seam = TrackersSeam(Path(sys.argv[1]))
seam.install()
runpy.run_path(sys.argv[2], run_name="__main__")
seam.remove()
"""
STAND_INS = {
    "wandb/sdk/wandb_init.py": "def init(project=None, mode=None):\n    return mode\n",
    "wandb/__init__.py": "from wandb.sdk.wandb_init import init\n",
    "wandb/sdk/__init__.py": "",
    "tensorboardX/__init__.py": "from tensorboardX.writer import SummaryWriter\n",
    "tensorboardX/writer.py": (
        "class SummaryWriter:\n    def __init__(self, logdir=None, comment=''):\n"
        "        self.logdir = logdir\n"
    ),
    "mlflow/__init__.py": "from mlflow.tracking._tracking_service.utils import get_tracking_uri\n",
    "mlflow/tracking/__init__.py": "",
    "mlflow/tracking/_tracking_service/__init__.py": "",
    "mlflow/tracking/_tracking_service/utils.py": (
        "def get_tracking_uri():\n    return 'http://server'\n"
    ),
    "mlflow/tracking/_tracking_service/registry.py": (
        "class TrackingStoreRegistry:\n    def get_store(self, uri=None, artifact_uri=None):\n"
        "        return uri, artifact_uri\n"
    ),
}


@dataclass
class Server:
    """A server that answers everything with an empty object and remembers what was asked."""

    url: str
    requests: list[str] = field(default_factory=list)


@pytest.fixture
def server() -> Iterator[Server]:
    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            self.rfile.read(int(self.headers.get("Content-Length") or 0))
            found.requests.append(f"{self.command} {self.path}")
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        do_GET = do_POST = do_PUT = do_DELETE = do_PATCH = do_HEAD = _answer  # noqa: N815

        def log_message(self, *args: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Handler) as listening:
        found = Server(f"http://127.0.0.1:{listening.server_port}")
        thread = threading.Thread(target=listening.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        yield found
        listening.shutdown()
        thread.join()


@pytest.fixture
def seam(tmp_path: Path) -> Iterator[TrackersSeam]:
    seam = TrackersSeam(tmp_path / "it's a shadow")
    seam.install()
    yield seam
    seam.remove()


@pytest.fixture
def stand_ins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name, text in STAND_INS.items():
        path = tmp_path / "packages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path / "packages")
    yield
    for name in [n for n in sys.modules if n.split(".")[0] in {"wandb", "tensorboardX", "mlflow"}]:
        del sys.modules[name]


@pytest.mark.parametrize("library", PROGRAMS)
def test_a_real_tracker_reaches_no_server(
    library: str, server: Server, workplace: Path, tmp_path: Path
) -> None:
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed")
    program = workplace / "train.py"
    program.write_text(PROGRAMS[library], encoding="utf-8")
    environment = {**os.environ, **TRACKERS_OFF, "SERVER": server.url, "WANDB_BASE_URL": server.url}
    command = [sys.executable, "-c", UNDER_THE_SEAM, str(tmp_path / "shadow"), str(program)]
    ended = subprocess.run(command, env=environment, check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert server.requests == []
    assert list(workplace.iterdir()) == [program]


def test_the_hub_sees_an_upload_without_the_seam_and_nothing_with_it(
    server: Server, tmp_path: Path
) -> None:
    api = HfApi(endpoint=server.url, token="hf_none")
    with pytest.raises(KeyError):  # the server's answer is empty
        api.create_repo("me/model")
    assert server.requests.pop() == "POST /api/repos/create"
    server.requests.clear()
    seam = TrackersSeam(tmp_path)
    seam.install()
    try:
        assert api.create_repo("me/model", exist_ok=True).repo_id == "me/model"
        data = api.create_repo("me/data", repo_type="dataset")
        assert (data.repo_id, data.repo_type) == ("me/data", "dataset")
        commit = api.upload_file(path_or_fileobj=b"x", path_in_repo="a", repo_id="me/model")
        assert commit.repo_url.repo_id == "me/model"
        later = api.upload_folder(folder_path=tmp_path, repo_id="me/model", run_as_future=True)
        assert later.result().oid == commit.oid
        api.create_branch("me/model", branch="new")
        api.delete_repo("me/model")
    finally:
        seam.remove()
    assert server.requests == []


def test_a_download_still_reaches_the_hub(server: Server, seam: TrackersSeam) -> None:
    with pytest.raises(KeyError):
        HfApi(endpoint=server.url, token=False).whoami(token="hf_none")["name"]
    assert server.requests == ["GET /api/whoami-v2"]


def test_functions_of_the_hub_are_kept_as_the_methods_are(
    seam: TrackersSeam, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "autotune"):
        for _ in range(2):
            assert hf_api.create_repo("model").repo_id == "trial/model"
        huggingface_hub.upload_file(path_or_fileobj=b"x", path_in_repo="a", repo_id="me/model")
    told = [record.getMessage() for record in caplog.records]
    assert told == [
        "autotune: not uploaded in a trial (HfApi.create_repo)",
        "autotune: not uploaded in a trial (HfApi.upload_file)",
    ]


def test_what_the_seam_replaced_comes_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stand_ins: None
) -> None:
    monkeypatch.setenv("MLFLOW_RUN_ID", "of the server")
    before = dict(vars(HfApi)), dict(os.environ), list(sys.meta_path)
    seam = TrackersSeam(tmp_path)
    seam.install()
    assert not set(DESTINATIONS) & set(os.environ)
    assert vars(HfApi)["upload_file"] is not before[0]["upload_file"]
    wandb = importlib.import_module("wandb.sdk.wandb_init")
    assert wandb.init(mode="online") == "disabled"
    seam.remove()
    assert (dict(vars(HfApi)), dict(os.environ), list(sys.meta_path)) == before
    assert wandb.init(mode="online") == "online"


def test_arguments_in_the_programs_code_do_not_switch_a_tracker_on(
    seam: TrackersSeam, stand_ins: None, tmp_path: Path
) -> None:
    wandb = importlib.import_module("wandb")
    assert wandb.init("mine", "online") == wandb.init() == "disabled"
    writer = importlib.import_module("tensorboardX").SummaryWriter
    places = [writer("s3://bucket/a").logdir, writer("s3://bucket/b").logdir, writer().logdir]
    assert len(set(places)) == 3
    assert all(place.startswith(str(tmp_path)) for place in places)


def test_every_address_of_mlflow_is_a_store_in_the_trials_folder(
    seam: TrackersSeam, stand_ins: None, tmp_path: Path
) -> None:
    mlflow = importlib.import_module("mlflow")
    stores = importlib.import_module("mlflow.tracking._tracking_service.registry")
    uri, _ = stores.TrackingStoreRegistry().get_store("http://server")
    assert uri.startswith(tmp_path.as_uri())
    assert mlflow.get_tracking_uri() == uri == os.environ["MLFLOW_TRACKING_URI"]


def test_a_version_that_the_seam_does_not_know_is_told(
    seam: TrackersSeam, stand_ins: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "packages/wandb/sdk/wandb_init.py").write_text("init = None\n", encoding="utf-8")
    with caplog.at_level(logging.WARNING, "autotune"):
        importlib.import_module("wandb")
    assert "this version of wandb has no wandb.sdk.wandb_init.init, so" in caplog.text
