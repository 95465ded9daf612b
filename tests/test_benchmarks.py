"""The benchmarks count, compare and judge rightly; no test here starts a real search."""

import json
import math
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from autotune.measurement.interval import Interval
from autotune.program.config import Config, KnobValue
from benchmarks import live, machines, record
from benchmarks.answer import Ratio
from benchmarks.gpu.bench import Status
from benchmarks.gpu.program_check import judge_end, judge_held, judge_memory
from benchmarks.live import Progress, of_turns
from benchmarks.processes import Ran
from benchmarks.replay.world import FOLDER, Table, reached, read, speedup
from tests.gpu_fakes import FakeNvml
from tests.made import A100


def row(script: str = "mnist", repetition: int = 1, **fields: Any) -> dict[str, Any]:
    head = {"commit": "abc", "script": script, "repetition": repetition, "budget": "90s"}
    return {**head, "wall_s": 81.0, "finding": "nothing found", **fields}


def claimed(estimate: float, true: float, se: float = 0.01) -> dict[str, Any]:
    speedup = {"estimate": estimate, "low": estimate * 0.95, "high": estimate * 1.05}
    truth = {"log": math.log(true), "se": se, "wall_s": 120.0}
    return row(finding="faster", speedup=speedup, truth=truth)


@pytest.mark.parametrize(
    ("pattern", "text", "done"),
    [
        (r"step (?P<count>\d+)", "step 10 | loss\nstep 20 | loss\nstep 1", [10, 20]),
        (r"E(?P<epoch>\d+) (?P<part>\d+)/(?P<of>\d+)", "E1 2/4\rE1 4/4\rE2 1/4\r", [1.5, 2, 2.25]),
        (r"^ *\d+%.* (?P<part>\d+)/(?P<of>\d+)", "maps: 9% 9/9\r 50% 1/2\r", [0.5]),
        (r"^loss", "loss\nother\nloss\n", [1, 2]),
        (r"step (?P<count>\d+)", "step 20\nstep 10\n", [20]),
    ],
)
def test_progress_is_read_from_lines_and_bars(pattern: str, text: str, done: list[float]) -> None:
    progress = Progress(pattern)
    for second, letter in enumerate(text):
        progress.feed(letter, float(second))
    assert [mark.done for mark in progress.marks] == done


def test_a_steady_drift_cancels_and_is_told_as_error() -> None:
    quiet = of_turns([10.0, 15.0, 15.0, 10.0])
    drifting = of_turns([10.0, 15.0 * 1.1, 15.0 * 1.1**2, 10.0 * 1.1**3])
    larger_steps = of_turns([10.0, 7.5, 7.5, 10.0], samples=2.0)
    for found in (quiet, drifting, larger_steps):
        assert math.exp(found["log"]) == pytest.approx(1.5)
    assert quiet["se"] == 0
    assert drifting["se"] == pytest.approx(math.log(1.1))


def test_the_summary_holds_claims_to_the_truth() -> None:
    candidate = {"estimate": 1.1, "low": 1.0, "high": 1.21}
    missed = row(candidate_speedup=candidate, truth={"log": math.log(1.2), "se": 0.0})
    rows = [claimed(1.5, 1.45), claimed(1.5, 1.02), missed, row(finding="failed: no answer")]
    told = "\n".join(live.summary([*rows, {**row("gan"), "wall_s": 99.0}]))
    assert "5 searches, 1 failed, 2 claims, 3 truths" in told
    assert "truly 1.15x or more: 1 of 2" in told
    assert "both 95 % errors: 1 of 2" in told
    assert "below 1.3x: 9.5 % (1)" in told
    assert "above 1.3x: 5.0 % (2)" in told
    assert "110% of its budget (gan)" in told


def test_a_search_that_is_late_or_killed_or_crashes_and_memory_that_is_kept_fail() -> None:
    endings = ((0, 68.9), (0, 69.1), (-9, 60.0), (1, 2.0))
    judged = [judge_end(Ran(code, "", "", s), budget_s=60).status for code, s in endings]
    assert judged == [Status.PASS, Status.FAIL, Status.FAIL, Status.FAIL]
    judged = [judge_held(1 << 30, after).status for after in (1 << 30, 5 << 28)]
    assert judged == [Status.PASS, Status.FAIL]
    judged = [judge_memory(found, 2 << 30).status for found in (2 << 30, 3 << 30, None)]
    assert judged == [Status.PASS, Status.FAIL, Status.FAIL]


def test_the_error_of_four_runs_is_students() -> None:
    ratio = Ratio.of_speeds([1.6, 1.6 * 1.02], [1.0, 1.0])
    assert ratio.value == pytest.approx(1.6 * 1.01, rel=1e-3)
    assert ratio.error == pytest.approx(4.303 * 0.0198 / 2, rel=1e-2)
    assert Ratio.of_speeds([2.0], [1.0]).error is None
    claim = Ratio.within(2.0, 1.9, 2.1)
    assert claim.agrees_with(Ratio(0.65, 0.0))
    assert claim.agrees_with(Ratio(0.5, 0.0)) is False
    assert claim.agrees_with(Ratio(0.65, 0.5)) is None, "too noisy to tell"


KNOBS: dict[str, tuple[KnobValue, ...]] = {
    "workers": (0, 1, 2),
    "threads": (2, 1),
    "batch_size": (32, 64),
    "precision": ("fp32", "bf16"),
}
FACTORS: dict[str, dict[KnobValue, float]] = {
    "workers": {1: 1.2, 2: 1.1},
    "threads": {1: 0.8},
    "batch_size": {64: 1.3},
    "precision": {"bf16": 1.2},
}
FAILS = (2, 1, 32, "bf16")


@pytest.fixture
def table(tmp_path: Path) -> Table:
    rows = [
        [*values, math.prod(FACTORS[k].get(v, 1.0) for k, v in zip(KNOBS, values, strict=True))]
        for values in product(*KNOBS.values())
        if values != FAILS
    ]
    baseline = {knob: values[0] for knob, values in KNOBS.items()}
    made = {"step_s": 0.02, "knobs": KNOBS, "baseline": baseline, "speedups": rows}
    path = tmp_path / "made.json"
    path.write_text(json.dumps(made), encoding="utf-8")
    return read(path)


def test_a_search_in_a_recorded_world_finds_a_config_near_its_best(table: Table) -> None:
    assert len(table.speedups) == 3 * 2 * 2 - 1
    assert table.speedups[table.baseline] == 1.0
    assert table.best == pytest.approx(1.2 * 1.2)
    assert speedup(table, Config({"precision": "bf16"})) == pytest.approx(1.2)
    failing = Config({"workers": 2, "threads": 1, "precision": "bf16"})
    assert speedup(table, failing) is None
    chosen, recommended = reached(table, "autotune", 120.0, seed=0)
    assert chosen > 0.9
    assert recommended in (chosen, pytest.approx(1 / table.best))


def test_a_result_is_named_by_the_device_that_was_trained_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record, "RESULTS", tmp_path)
    FakeNvml([A100]).install(monkeypatch)
    on_cpu = record.save("overhead", {}, part="short")
    assert on_cpu.name.endswith("-overhead-short-cpu.json")
    assert json.loads(on_cpu.read_text())["machine"]["gpus"] == [A100.name]
    assert record.save("strategies", {}, device="cuda").name.endswith("-strategies-cuda.json")


def test_a_claim_is_judged_by_machines_that_took_no_part() -> None:
    narrow, wide = Interval(1.1, 1.09, 1.11), Interval(1.1, 1.0, 1.2)
    log = math.log(1.1)
    assert machines.holds(narrow, log, 0.0) == 1.0
    assert machines.holds(narrow, math.log(1.2), 0.0) == 0.0
    assert machines.holds(narrow, log, 0.03) < 0.3
    assert machines.holds(wide, log, 0.03) > 0.99
    found = machines.drawn((machines.Case(4, 0.0, 1.0), 2, 20))
    assert found["claims"] == 0.0
    assert found["holds"] == 1.0


def test_shared_searches_go_on_where_they_stood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, values in {"MEMBERS": (2,), "OMEGAS": (0.03,), "GAINS": (1.3,)}.items():
        monkeypatch.setattr(machines, name, values)
    out, made = tmp_path / "out.jsonl", list[Any]()

    def each(run: Any, tasks: Any) -> list[Any]:
        made.extend(tasks)
        return [run(one) for one in tasks]

    first = machines.searches(each, 1, out)
    assert machines.searches(each, 1, out) == first
    assert len(made) == 1, "what was searched is not searched again"
    every = first["all"]
    assert isinstance(every, dict)
    assert every["searches"] == 1
    assert every["false_claims"] == 0.0


def test_members_of_a_replay_tell_when_they_are_near_the_best(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(machines, "REPLAY_S", 60.0)
    table = read(FOLDER / "char_gpt.json")
    watch = machines.Watch(table)
    watch.seen = [(1.0, 0.99), (2.0, 0.9), (3.0, 0.98), (4.0, 1.0)]
    assert watch.reached_s(0.98) == 3.0
    assert watch.reached_s(1.01) == math.inf
    found = machines.replayed(("char_gpt", 2, 0))
    assert len(found.reached_s) == 2
    assert found.announced is None or found.announced <= 1.0
    assert found.look_bytes > 1000
