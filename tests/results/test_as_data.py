"""What commands print as data: each schema says of real output what is there, and takes no more.

``python -m tests.results.test_as_data`` writes the schemas again after a change of the models.
"""

import copy
import json
from collections.abc import Iterator
from dataclasses import replace
from importlib.resources import files
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from autotune.machine import conditions
from autotune.measurement.examination import (
    Affinity,
    Batches,
    Examination,
    ItemsExamined,
    MemoryGrowth,
    Operators,
    Padding,
    StepBreakdown,
    StepParts,
)
from autotune.measurement.gate import Gate
from autotune.measurement.interval import Interval
from autotune.measurement.outcome import Ending, Outcome
from autotune.program.config import Config
from autotune.program.sharing_options import SharingOptions
from autotune.results import bestfile
from autotune.results.data.comparison import ComparisonData
from autotune.results.data.doctor import DoctorData, examined_part, machine_part
from autotune.results.data.part import Part, schema_of
from autotune.results.data.result import ResultData, as_data, as_text
from autotune.results.finding import Finding
from autotune.results.result import SearchResult
from autotune.results.shared_answer import GroupAnswer, MachineClaim, Refusal, SharedAnswer
from autotune.tuning import compare
from autotune.tuning.events import Events
from autotune.tuning.examine import examine
from tests.made import HARDWARE, PROGRAM, make_loader
from tests.rigging import write_best
from tests.scripted import Question, Script, ScriptedMachine, begin
from tests.tuning.watched import Knobs

FOLDER = files("autotune.results").joinpath("schema")
MODELS: dict[str, type[Part]] = {
    "result": ResultData,
    "comparison": ComparisonData,
    "doctor": DoctorData,
}
FORMATS = {f"{name}-{one.model_fields['number'].default}": one for name, one in MODELS.items()}
KNOBS: Knobs = {"workers": (0, 1, 2), "batch_size": (64, 128), "precision": ("fp32", "bf16")}
WORKERS: Knobs = {"workers": (0, 1)}
FEW: Knobs = {**WORKERS, "precision": ("fp32", "bf16")}
UNSURE = Interval(1.4, 0.9, 2.2)
WRITTEN = {"workers": 0, "batch_size": 64, "precision": "fp32"}


def fails(question: Question) -> Ending | None:
    """End whatever is not as written."""
    is_written = (question.config or Config({})).items() <= WRITTEN.items()
    return None if is_written else Ending(Outcome.OUT_OF_MEMORY, "the GPU's memory is full")


SEARCHES: dict[Finding, tuple[Script, Knobs, float]] = {
    Finding.FASTER: (Script({"workers": {1: 1.5}}), KNOBS, 180.0),
    Finding.NOTHING_FOUND: (Script({"workers": {1: 0.9, 2: 0.8}}), KNOBS, 180.0),
    Finding.TOO_NOISY: (Script({}, noise=0.8, ratio_noise=0.2), FEW, 240.0),
    Finding.UNCONFIRMED: (Script({"workers": {1: 1.5}}, start_s=20.0), KNOBS, 45.0),
    Finding.NOT_MEASURED: (Script(ends=fails), KNOBS, 150.0),
}


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> dict[Finding, SearchResult]:
    """A real result for each finding; a machine at its limit is said to be so."""
    found = {}
    for finding, (script, knobs, budget_s) in SEARCHES.items():
        made = (begin(tmp_path_factory.mktemp("it"), script, knobs, seed) for seed in range(9))
        results = (search.go_on(budget_s) for search in made)
        found[finding] = next(one for one in results if one.finding is finding)
    shared = found[Finding.FASTER]
    machines = (MachineClaim("a", 2, shared.speedup, is_here=True), MachineClaim("b", 3, UNSURE))
    options = replace(shared.head.options, sharing=SharingOptions("grpc://hub:13000", "it"))
    found[Finding.FASTER] = replace(
        shared,
        head=replace(shared.head, options=options),
        shared=SharedAnswer(
            machines,
            (Refusal(shared.baseline.replace(workers=2), "a", "b", "it fails"),),
            groups=(
                GroupAnswer(
                    "0a", "GPU", Finding.FASTER, Config({"workers": 2}), UNSURE, ("c", "d")
                ),
                GroupAnswer("0b", "CPU", Finding.TOO_NOISY),
            ),
        ),
    )
    at_limit = replace(found[Finding.NOTHING_FOUND], finding=Finding.AT_LIMIT)
    return {**found, Finding.AT_LIMIT: at_limit}


def compared(folder: Path) -> Iterator[dict[str, Any]]:
    """What a comparison prints of a config with a gate, and of a program with itself."""
    write_best(folder / "best.yaml", {"workers": 0}, make_loader(), workers=1)
    written = compare.ComparedSide(PROGRAM)
    config = compare.ComparedSide(PROGRAM, bestfile.read(folder / "best.yaml"), "best.yaml")
    for other, gate in ((config, Gate(5.0)), (written, None)):
        machine = ScriptedMachine(Script({"workers": {1: 1.5}}, noise=0.02))
        options = compare.CompareOptions(300.0, gate=gate)
        sides = (written, other)
        found = compare.compare(sides, HARDWARE, options, Events(), machine.surroundings)
        yield compare.as_data(found)


def examined() -> Iterator[dict[str, Any]]:
    """What the doctor prints of a machine alone, and of programs without and with all readings."""
    machine = machine_part(HARDWARE, conditions.read(), ["others use it"], "an overlay")
    yield DoctorData(machine=machine, program=None).as_json()
    full = Script(
        power_w=lambda _: 100.0,
        breakdown=StepBreakdown(
            StepParts(0.0, 0.0, 0.09, 0.01, 0.0, 0.0, 10, launch_s=0.01),
            *(UNSURE, UNSURE, 1e9, UNSURE),
            Operators(1000, 1e-4, 0.1, 2e-4),
            Batches(40, 9, Padding(0.4, 0.6, 1.0, "attention_mask")),
        ),
        examination=Examination(
            ItemsExamined(100, 0.002, computing_share=0.9, where="data.py:31"),
            Affinity((0, 1), (0, 1), ((0, 1), (0, 1))),
            MemoryGrowth(10, (1 << 29,) * 7),
        ),
    )
    for script in (Script(), full):
        surroundings = ScriptedMachine(script).surroundings
        report = examine(PROGRAM, HARDWARE, Events(), surroundings=surroundings)
        yield DoctorData(machine=machine, program=examined_part(report)).as_json()


@pytest.fixture(scope="module")
def printed(
    results: dict[Finding, SearchResult], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, list[dict[str, Any]]]:
    """Real output by its format."""
    folder = tmp_path_factory.mktemp("sides")
    return {
        "result-2": [as_data(result) for result in results.values()],
        "comparison-1": [*compared(folder)],
        "doctor-1": [*examined()],
    }


def objects_in(data: Any) -> Iterator[dict[str, Any]]:
    """Yield each object of a result that the schema lists the keys of."""
    if isinstance(data, dict):
        yield data
        data = [*data.values()]
    if isinstance(data, list):
        for one in data:
            yield from objects_in(one)


@pytest.mark.parametrize("name", FORMATS)
def test_a_schema_in_the_wheel_is_that_of_the_models(name: str) -> None:
    held = json.loads(FOLDER.joinpath(f"{name}.json").read_text(encoding="utf-8"))
    assert held == json.loads(json.dumps(schema_of(FORMATS[name]))), (
        "run python -m tests.results.test_as_data; a key that goes or changes needs another number"
    )
    assert {f"{one}.json" for one in FORMATS} == {file.name for file in FOLDER.iterdir()}


def test_every_finding_is_of_a_real_search_and_its_result_is_as_the_schema_says(
    results: dict[Finding, SearchResult],
) -> None:
    assert {*results} == {*Finding}
    for finding, result in results.items():
        assert result.finding is finding
        data = json.loads(as_text(result))
        assert (data["schema"], data["finding"]) == (2, finding)
        jsonschema.validate(data, schema_of(ResultData))
        assert {"as_written", "best"} == data["best"]["throughput"].keys()
    names = {finding: result.own_file.name for finding, result in results.items()}
    assert names.pop(Finding.FASTER) == "best.yaml"
    assert names.pop(Finding.UNCONFIRMED) == "candidate.yaml"
    assert {*names.values()} == {"result.json"}


# What may have any names
OPEN = {
    "bounds", "shares", "imports", "config", "as_written", "changes", "blame", "untried",
    "versions", "parts", "config_reads",
}  # fmt: skip
SEEN = {
    "result-2": {"schema", "finding", "host_bytes", "cpu_quota", "live_speedup", "error_pct"},
    "comparison-1": {"schema", "finding", "estimate", "most_pct", "commit", "verdict", "is_other"},
    "doctor-1": {"schema", "fence", "quota", "mend", "padding", "item_s", "num_workers", "call_s"},
}


@pytest.mark.parametrize("name", FORMATS)
def test_no_key_may_be_missing_and_none_may_be_added(
    name: str, printed: dict[str, list[dict[str, Any]]]
) -> None:
    """Each key of each object is taken away once, and one is added to each object once."""
    check = jsonschema.Draft202012Validator(schema_of(FORMATS[name]))
    tried = set[str]()
    for data in copy.deepcopy(printed[name]):
        check.validate(data)
        assert f"-{data['schema']}" == name[-2:]
        for long in ("trials", "claim"):
            data.update({long: data[long][:1]} if long in data else {})
        open_ones = [id(one[name]) for one in objects_in(data) for name in OPEN & one.keys()]
        for place in objects_in(data):
            if id(place) in open_ones:
                continue
            for key in [*place]:
                tried.add(key)
                value = place.pop(key)
                assert not check.is_valid(data), f"without {key}"
                place[key] = value
            place["unknown"] = 1
            assert not check.is_valid(data)
            del place["unknown"]
        assert check.is_valid(data)
    assert tried >= SEEN[name]


if __name__ == "__main__":
    for name, model in FORMATS.items():
        text = json.dumps(schema_of(model), indent=1) + "\n"
        Path(str(FOLDER), f"{name}.json").write_text(text, encoding="utf-8")
