"""Trackers: each real library says of a run what the search has found."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from autotune.cli.app import app
from autotune.errors import UsageError
from autotune.exports import TRACKERS, log, tracked
from autotune.results.finding import Finding
from autotune.results.result import SearchResult
from tests.exports.stored import offline, stored

__all__ = ["stored"]
PAGE = "<!doctype html>"


@pytest.mark.slow
@pytest.mark.parametrize("name", TRACKERS)
def test_the_library_reads_back_what_the_search_found(
    name: str, stored: SearchResult, tmp_path: Path
) -> None:
    command = [sys.executable, "-m", "tests.exports.read_back", name, str(stored.run_dir)]
    done = subprocess.run(
        command, cwd=tmp_path, env=offline(tmp_path), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    seen = json.loads((tmp_path / "seen.json").read_text())
    expected = tracked(stored, PAGE)
    for key, value in {**expected.params, **expected.tags}.items():
        found = seen["params"][key]  # hparams hold all numbers as floats
        assert (f"{found:g}" if isinstance(found, float) else str(found)) == str(value)
    metrics = {k: v for k, v in seen["metrics"].items() if k.startswith("autotune/")}
    assert metrics == pytest.approx(dict(expected.metrics), rel=1e-6)  # of 32 bits in a scalar


def test_what_is_tracked_is_what_the_result_says(stored: SearchResult) -> None:
    found = tracked(stored, PAGE)
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
    assert found.files["report.html"] == PAGE
    stored.save(stored.run_dir / "best.yaml")
    assert found.files["best.yaml"] == (stored.run_dir / "best.yaml").read_text()


def test_where_nothing_is_recommended_no_knob_is_logged(stored: SearchResult) -> None:
    kept = replace(stored, best=stored.baseline, finding=Finding.UNCONFIRMED, reason="Ctrl-C")
    found = tracked(kept, PAGE)
    assert not found.params
    assert found.tags["autotune/finding"] == "not confirmed"
    assert found.tags["autotune/reason"] == "Ctrl-C"
    assert {*found.files} == {"candidate.yaml", "report.html", "result.json"}


def test_what_cannot_be_logged_is_refused_with_the_mend(
    stored: SearchResult, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UsageError, match="Did you mean 'mlflow'"):
        log(stored, "mlfow", PAGE)
    for name in TRACKERS:
        monkeypatch.setitem(sys.modules, name, None)
        with pytest.raises(UsageError, match=rf"pip install {name}\."):
            log(stored, name, PAGE)
    refused = CliRunner().invoke(app, ["export", "--to", "mlflow", "-o", "a", str(stored.run_dir)])
    assert refused.exit_code == 2
    assert "from its environment variables" in refused.output
