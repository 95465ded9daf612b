"""Trackers: each real library says of a run what the search has found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from autotune.integrations.tracked_result import TrackedResult, tracked_result
from autotune.integrations.trackers import TRACKERS, tracker
from typer.testing import CliRunner

from autotune.cli.app import app
from autotune.errors import UsageError
from autotune.report import html
from autotune.results.result import Finding, SearchResult
from tests.integrations.stored import stored

__all__ = ["stored"]
ROOT = Path(__file__).parents[2]


@pytest.mark.slow
@pytest.mark.parametrize("name", TRACKERS)
def test_the_library_reads_back_what_the_search_found(
    name: str, stored: SearchResult, tmp_path: Path
) -> None:
    expected = tracked_result(stored)
    seen = _read_back(name, stored.run_dir, tmp_path)
    assert [one["name"][""] for one in seen] == {
        "mlflow": ["training", "train"],
        "wandb": ["training", "train"],
        "tensorboard": ["events", "tensorboard", "training"],
    }[name]
    for one in seen:
        if name == "wandb":
            assert {**expected.params, **expected.tags}.items() <= one["config"].items()
        else:
            assert {k: str(v) for k, v in expected.params.items()}.items() <= {
                k: _plain(v) for k, v in one["params"].items()
            }.items()
            assert one["tags"] == expected.tags
        metrics = {k: v for k, v in one["metrics"].items() if k.startswith("autotune/")}
        assert metrics == pytest.approx(dict(expected.metrics), rel=1e-6)  # of 32 bits in a scalar
        left_out = {"report.html"} if name == "tensorboard" else set()
        assert one["files"] == {n: t for n, t in expected.files.items() if n not in left_out}
    if name != "tensorboard":
        assert (seen[0].get("params") or seen[0]["config"])["lr"] in {"0.1", 0.1}


def _read_back(name: str, run: Path, folder: Path) -> list[dict[str, dict[str, Any]]]:
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "MLFLOW_TRACKING_URI": f"sqlite:///{folder}/mlflow.db",
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "WANDB_MODE": "offline",
        "WANDB_SILENT": "true",
        "WANDB_ERROR_REPORTING": "false",
        "WANDB_CACHE_DIR": str(folder / "cache"),
        "WANDB_CONFIG_DIR": str(folder / "config"),
        "WANDB_DATA_DIR": str(folder / "data"),
    }
    done = subprocess.run(
        [sys.executable, "-m", "tests.integrations.read_back", name, str(run)],
        cwd=folder, env=environment, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    seen: list[dict[str, dict[str, Any]]] = json.loads((folder / "seen.json").read_text())
    return seen


def _plain(value: object) -> str:
    """Hparams hold all numbers as floats."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def test_what_is_tracked_is_what_the_result_says(stored: SearchResult) -> None:
    found = tracked_result(stored)
    assert stored.finding is Finding.FASTER
    assert found.params["autotune/workers/before"] == 0
    assert found.params["autotune/workers/after"] == 1
    assert len(found.params) == 2 * len(stored.changes)
    assert found.metrics["autotune/speedup"] == stored.speedup.estimate
    assert found.metrics["autotune/speedup_low"] == stored.speedup.low
    assert found.metrics["autotune/samples_per_s_after"] == stored.throughput[1].estimate
    assert found.metrics["autotune/host_bytes_after"] == 2 << 30
    assert "autotune/device_reserved_bytes_after" not in found.metrics, "no device was used"
    assert found.tags["autotune/finding"] == "faster"
    assert found.tags["autotune/program"] == str(stored.head.program)
    assert stored.head.hardware.cpu_name in found.tags["autotune/machine"]
    assert found.files["report.html"] == html(stored, Path("best.yaml"))
    stored.save(stored.run_dir / "best.yaml")
    assert found.files["best.yaml"] == (stored.run_dir / "best.yaml").read_text()


def test_where_nothing_is_recommended_no_knob_is_logged(stored: SearchResult) -> None:
    kept = replace(stored, best=stored.baseline, finding=Finding.UNCONFIRMED, reason="Ctrl-C")
    found = tracked_result(kept)
    assert not found.params
    assert found.tags["autotune/finding"] == "not confirmed"
    assert found.tags["autotune/reason"] == "Ctrl-C"


def test_a_tracker_that_does_not_exist_is_refused_with_the_nearest_name() -> None:
    with pytest.raises(UsageError, match="Did you mean 'mlflow'"):
        tracker("mlfow")


@pytest.mark.parametrize("name", TRACKERS)
def test_a_library_that_is_not_installed_is_named_with_its_extra(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, TRACKERS[name].module, None)
    with pytest.raises(UsageError, match=rf"pip install 'autotune-torch\[{name}\]'"):
        TRACKERS[name].log(TrackedResult("train", {}, {}, {}, {}))


def test_the_folder_of_tensorboard_is_an_option_of_tensorboard_alone(
    stored: SearchResult, tmp_path: Path
) -> None:
    run = str(stored.run_dir)
    done = CliRunner().invoke(
        app, ["log", "--to", "tensorboard", "--logdir", str(tmp_path / "a/b"), run]
    )
    assert done.exit_code == 0, done.output
    assert [path.name[:10] for path in (tmp_path / "a/b").iterdir()] == ["events.out"]
    refused = CliRunner().invoke(app, ["log", "--to", "mlflow", "--logdir", "a", run])
    assert refused.exit_code == 2
    assert "--logdir is TensorBoard's" in refused.output
