"""Trackers and the hub: what a program logs and uploads reaches no server while the seam is in."""

from __future__ import annotations

import importlib
import importlib.util
import logging
import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import huggingface_hub
import pytest
from huggingface_hub import HfApi, hf_api

from autotune.inside.seams.trackers import TrackersSeam
from autotune.program.trackers import DESTINATIONS, local_places
from tests.machine.test_cgroups import write
from tests.watching import installed

# Libraries as the seam knows them, and one that it does not know
STAND_INS = {
    "tensorboardX/__init__.py": "",
    "tensorboardX/writer.py": (
        "class SummaryWriter:\n    def __init__(self, logdir=None, comment=''):\n"
        "        self.logdir = logdir\n"
    ),
    "trackio.py": "def init(project, space_id=None):\n    return project, space_id\n",
    "dvclive/__init__.py": "",
    "dvclive/live.py": "",
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
    with installed(TrackersSeam(tmp_path / "it's a shadow")) as seam:
        yield seam


def test_the_hub_sees_an_upload_without_the_seam_and_nothing_with_it(
    server: Server, tmp_path: Path
) -> None:
    api = HfApi(endpoint=server.url, token="hf_none")
    with pytest.raises(KeyError):  # the server's answer is empty
        api.create_repo("me/model")
    assert server.requests.pop() == "POST /api/repos/create"
    server.requests.clear()
    with installed(TrackersSeam(tmp_path)):
        assert hf_api.create_repo("model").repo_id == "trial/model"
        huggingface_hub.upload_file(path_or_fileobj=b"x", path_in_repo="a", repo_id="me/model")
        assert api.create_repo("me/model", exist_ok=True).repo_id == "me/model"
        data = api.create_repo("me/data", repo_type="dataset")
        assert (data.repo_id, data.repo_type) == ("me/data", "dataset")
        commit = api.upload_file(path_or_fileobj=b"x", path_in_repo="a", repo_id="me/model")
        assert commit.repo_url.repo_id == "me/model"
        later = api.upload_folder(folder_path=tmp_path, repo_id="me/model", run_as_future=True)
        assert later.result().oid == commit.oid
        api.create_branch("me/model", branch="new")
        api.delete_repo("me/model")
    assert server.requests == []


def test_a_download_still_reaches_the_hub(server: Server, seam: TrackersSeam) -> None:
    with pytest.raises(KeyError):
        HfApi(endpoint=server.url, token=False).whoami(token="hf_none")["name"]
    assert server.requests == ["GET /api/whoami-v2"]


def test_arguments_in_the_programs_code_are_overruled_until_the_seam_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write(tmp_path / "packages", STAND_INS)
    monkeypatch.syspath_prepend(tmp_path / "packages")
    for variable in (*DESTINATIONS, *local_places(tmp_path)):
        monkeypatch.setenv(variable, "of the server")
    before = dict(vars(HfApi)), list(sys.meta_path)
    seam = TrackersSeam(tmp_path)
    seam.install()
    assert not set(DESTINATIONS) & set(os.environ)
    assert os.environ["MLFLOW_TRACKING_URI"].startswith(tmp_path.as_uri())
    with caplog.at_level(logging.WARNING, "autotune"):
        writer, trackio, _ = map(
            importlib.import_module, ("tensorboardX.writer", "trackio", "dvclive.live")
        )
    assert "this version of dvclive has no dvclive.live.Live.__init__, so" in caplog.text
    assert writer.SummaryWriter("s3://bucket/a").logdir.startswith(str(tmp_path))
    assert trackio.init("mine", "me/space") == ("mine", None)
    assert vars(HfApi)["upload_file"] is not before[0]["upload_file"]
    seam.remove()
    assert trackio.init("mine", "me/space") == ("mine", "me/space")
    assert (dict(vars(HfApi)), list(sys.meta_path)) == before
    for name in [n for n in sys.modules if f"{n.partition('.')[0]}" in {"tensorboardX", "trackio"}]:
        del sys.modules[name]
