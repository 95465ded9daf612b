"""Whole searches, each with real rigs and the real confirmation."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
import yaml

import autotune
from autotune import api, bestfile, rundir
from autotune.errors import RunDirectoryError
from autotune.result import Finding
from tests.rigging import PROGRAMS

pytestmark = [pytest.mark.slow, pytest.mark.alone, pytest.mark.timeout(400)]
TOP_LEVEL = [
    "version", "program", "config", "baseline", "speedup", "throughput", "memory", "learning",
    "hardware", "versions", "search",
]  # fmt: skip


def test_a_search_makes_an_input_bound_script_faster_and_proves_it(workplace: Path) -> None:
    command = [sys.executable, "-m", "autotune", "search", "--budget", "75s", "--tune"]
    done = subprocess.run(
        [*command, "num_workers,num_threads", str(PROGRAMS / "slow_items.py")],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "x faster" in done.stdout
    assert "autotune run best.yaml" in done.stdout
    assert "input-bound" in done.stderr
    text = (workplace / "best.yaml").read_text()
    assert list(yaml.safe_load(text)) == TOP_LEVEL
    best = bestfile.read(workplace / "best.yaml")
    assert int(best.config["num_workers"]) >= 1
    assert best.baseline["num_workers"] == 0
    assert best.speedup.low > 1.0
    assert (workplace / ".autotune" / "slow_items" / "best.yaml").read_text() == text


def test_one_rig_measures_many_configs(workplace: Path) -> None:
    result = autotune.search(
        PROGRAMS / "plain.py", args=["losses"], budget=60, values={"batch_size": [32, 64, 96, 128]},
        tune=["batch_size", "num_threads", "precision"],
    )  # fmt: skip
    measured = [t for t in result.trials if t["outcome"] == "ok"]
    assert len(measured) >= 4
    assert {t["rig"] for t in measured} == {1}
    assert result.trials[0]["batch_size"] == 32
    assert result.run_dir.joinpath("best.yaml").is_file()
    assert not (workplace / "best.yaml").exists()
    assert result.save(workplace / "mine.yaml").is_file()
    assert result.speedup.low <= result.speedup.estimate <= result.speedup.high


def test_a_restart_knob_is_measured_in_a_process_of_its_own(workplace: Path) -> None:
    result = autotune.search(PROGRAMS / "plain.py", args=["losses"], budget=100, tune=["compile"])
    assert [(t["compile"], t["rig"], t["outcome"]) for t in result.trials] == [
        ("off", 1, "ok"),
        ("default", 2, "ok"),
    ]
    measurement = result.records[1].measurement
    assert measurement is not None
    assert measurement.compilation is not None
    assert measurement.compilation.seconds > 0.1
    assert measurement.compilation.graphs == 1
    assert measurement.compilation.recompiles == 0


def test_no_gain_keeps_the_programs_own_config_and_says_so(workplace: Path) -> None:
    # A worker only adds work to a program whose batches lie ready in memory.
    result = autotune.search(
        PROGRAMS / "plain.py", args=["losses"], budget="60s", tune=["num_workers"]
    )
    assert result.finding is Finding.NO_GAIN
    assert result.best == result.baseline
    assert result.speedup.estimate == 1.0
    assert result.best_file().config == result.best_file().baseline


def test_a_killed_search_leaves_nothing_running_and_resumes_with_every_trial(
    workplace: Path,
) -> None:
    script = str(PROGRAMS / "slow_items.py")
    search = psutil.Popen(
        [sys.executable, "-m", "autotune", "search", "--budget", "80s", "--tune",
         "num_workers,num_threads,batch_size", "--name", "killed", script],
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    run = rundir.RunDir(workplace / ".autotune" / "killed")
    _wait_for_trials(run, 3, search)
    tree = search.children(recursive=True)
    assert tree, "a rig runs while the search does"
    search.send_signal(signal.SIGKILL)
    search.wait()
    _, alive = psutil.wait_procs(tree, timeout=10)
    assert not alive
    before = run.load_study().records
    result = api.resume("killed")
    configs = [r.config for r in result.records]
    assert [r.config for r in before] == configs[: len(before)]
    assert len(set(configs)) == len(configs), "no config is measured twice"
    assert result.finding is Finding.FASTER


def test_ctrl_c_once_ends_with_the_best_so_far_confirmed(workplace: Path) -> None:
    search = subprocess.Popen(
        [sys.executable, "-m", "autotune", "search", "--budget", "10m", "--tune",
         "num_workers,num_threads,batch_size", "--name", "stopped",
         str(PROGRAMS / "slow_items.py")],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    run = rundir.RunDir(workplace / ".autotune" / "stopped")
    _wait_for_trials(run, 3, psutil.Process(search.pid))
    os.kill(search.pid, signal.SIGINT)
    stdout, stderr = search.communicate(timeout=180)
    assert search.returncode == 0, stderr
    assert "Ending the search; the best so far is being confirmed" in stderr
    assert "x faster" in stdout
    assert bestfile.read(workplace / "best.yaml").search.confirmed


def _wait_for_trials(run: rundir.RunDir, count: int, search: psutil.Process) -> None:
    while len(_records(run)) < count:
        assert search.is_running(), "the search should live until it is stopped"
        time.sleep(0.2)


def _records(run: rundir.RunDir) -> list[object]:
    try:
        return list(run.load_study().records)
    except RunDirectoryError:  # not begun yet
        return []
