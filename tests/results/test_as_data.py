"""result.json: its schema says of real results what is there, and takes nothing else.

``python -m tests.results.test_as_data`` writes the schema again after a change of the models.
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

from autotune.measurement.interval import Interval
from autotune.measurement.outcome import Ending, Outcome
from autotune.program.config import Config
from autotune.program.sharing_options import SharingOptions
from autotune.results.as_data import as_data, as_text, schema
from autotune.results.finding import Finding
from autotune.results.result import SearchResult
from autotune.results.shared_answer import GroupAnswer, MachineClaim, Refusal, SharedAnswer
from tests.scripted import Question, Script, begin
from tests.tuning.watched import Knobs

SCHEMA = files("autotune.results").joinpath("schema", "result-2.json")
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


def objects_in(data: Any) -> Iterator[dict[str, Any]]:
    """Yield each object of a result that the schema lists the keys of."""
    if isinstance(data, dict):
        yield data
        data = [*data.values()]
    if isinstance(data, list):
        for one in data:
            yield from objects_in(one)


def test_the_schema_in_the_wheel_is_that_of_the_models() -> None:
    assert json.loads(SCHEMA.read_text(encoding="utf-8")) == json.loads(json.dumps(schema())), (
        "run python -m tests.results.test_as_data; a key that goes or changes needs another number"
    )


def test_every_finding_is_of_a_real_search_and_its_result_is_as_the_schema_says(
    results: dict[Finding, SearchResult],
) -> None:
    assert {*results} == {*Finding}
    for finding, result in results.items():
        assert result.finding is finding
        data = json.loads(as_text(result))
        assert (data["schema"], data["finding"]) == (2, finding)
        jsonschema.validate(data, schema())
        assert {"as_written", "best"} == data["best"]["throughput"].keys()
    names = {finding: result.own_file.name for finding, result in results.items()}
    assert names.pop(Finding.FASTER) == "best.yaml"
    assert names.pop(Finding.UNCONFIRMED) == "candidate.yaml"
    assert {*names.values()} == {"result.json"}


# What may have any names
OPEN = {
    "bounds", "shares", "imports", "config", "as_written", "changes", "blame", "untried",
    "versions",
}  # fmt: skip


def test_no_key_may_be_missing_and_none_may_be_added(
    results: dict[Finding, SearchResult],
) -> None:
    """Each key of each object is taken away once, and one is added to each object once."""
    check = jsonschema.Draft202012Validator(schema())
    tried = set[str]()
    for result in results.values():
        data = as_data(result)
        data["trials"], data["claim"] = data["trials"][:1], data["claim"][:1]
        check.validate(data)
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
        assert check.is_valid(copy.deepcopy(data))
    assert {"schema", "finding", "host_bytes", "cpu_quota", "live_speedup", "error_pct"} <= tried


if __name__ == "__main__":
    Path(str(SCHEMA)).parent.mkdir(exist_ok=True)
    Path(str(SCHEMA)).write_text(json.dumps(schema(), indent=1) + "\n", encoding="utf-8")
