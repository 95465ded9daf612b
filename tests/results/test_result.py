"""What a search found, said in best.yaml and to the user."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.errors import UsageError
from autotune.knobs.space.space import SearchSpace
from autotune.measurement.interval import Interval
from autotune.measurement.readings import Compilation, Memory
from autotune.program.config import Config, KnobValue
from autotune.program.fence_options import FenceKind, FenceOptions
from autotune.program.flags import AS_WRITTEN
from autotune.results.data.result import as_data
from autotune.results.finding import Finding
from autotune.results.record import SearchOptions
from autotune.results.result import SearchResult
from autotune.results.verdict import verdict
from tests.made import (
    PROGRAM,
    make_applied,
    make_head,
    make_interval,
    make_measurement,
    make_record,
    make_space,
)

BASELINE: dict[str, KnobValue] = {"batch_size": 64, "compile": "off"}


def make_result(best: dict[str, KnobValue], **changes: Any) -> SearchResult:
    """Return a search in which the program went from 1000 to 1250 samples/s, with changes."""
    baseline, config = Config(BASELINE), Config({**BASELINE, **best})
    measured = make_measurement(1250.0, compilation=Compilation(24.0, 1, 0, 0))
    record = replace(make_record(config, 1.25), measurement=measured)
    result = SearchResult(
        finding=Finding.FASTER,
        best=config,
        baseline=baseline,
        candidate=config,
        speedup=Interval(1.25, 1.2, 1.3),
        candidate_speedup=Interval(1.25, 1.2, 1.3),
        throughput=(make_interval(1000.0), make_interval(1250.0)),
        memory=(Memory(), Memory()),
        reason="",
        untried=(),
        worth_s=240.0,
        warnings=(),
        records=(record,),
        head=make_head(make_space(list(BASELINE))),
        applied=make_applied(BASELINE),
        seconds=100.0,
        processes=3,
        run_dir=Path("run"),
    )
    return replace(result, **changes)


def test_a_compiled_winner_says_after_how_many_steps_it_has_paid_for_itself() -> None:
    result = make_result({"compile": "default"})
    measured = result.records[0].measurement
    assert measured is not None
    per_step = measured.samples_per_step
    steps = result.break_even_steps
    assert steps is not None
    samples = steps * per_step
    compiled_s, written_s = 24.0 + samples / 1250.0, samples / 1000.0
    assert abs(compiled_s - written_s) <= per_step / 1000.0, "both have come as far by then"
    assert as_data(result)["best"]["compile_seconds"] == 24.0
    assert as_data(result)["best"]["break_even_steps"] == steps
    assert make_result({"batch_size": 128}).break_even_steps is None


def test_where_steps_are_fixed_the_time_of_the_whole_run_is_said() -> None:
    bound = "train.py:57: for step in range(200)"
    applied = make_applied(BASELINE, bounded_by_steps=bound)
    larger = make_record({**BASELINE, "batch_size": 256}, 0.48)
    tried = make_result({}, applied=applied, records=(larger,))
    assert bound in tried.steps_note
    assert "with 4 times the samples a step takes 2.08x as long" in tried.steps_note
    assert make_result({}, records=(larger,)).steps_note == ""
    assert make_result({"compile": "default"}, applied=applied).steps_note == ""


def test_the_lines_that_a_search_prints_repeat_the_words_of_the_user() -> None:
    tuned = {"$FLAVOUR": "sweet", "$KMP_BLOCKTIME": "0"}
    space = SearchSpace("mine", {name: (value,) for name, value in tuned.items()})
    options = SearchOptions(180.0, fence=FenceOptions(FenceKind.LANDLOCK))
    before = Config({**BASELINE, **dict.fromkeys(tuned, AS_WRITTEN)})
    result = make_result({**tuned}, baseline=before, head=make_head(space, options=options))
    rows = {row.label: row.text for row in verdict(result, Path("best.yaml")).rest}
    line = "autotune run --allow-env FLAVOUR best.yaml train.py --epochs 3"
    assert rows["train with it"] == line
    line = "autotune resume 'a b' --fence landlock --allow-env FLAVOUR"
    assert result.head.to_resume("a b") == line


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        ({"env": {"OMP_NUM_THREADS": "1"}, "python_options": ("-u", "-X", "importtime")}, ""),
        ({"env": {"LD_PRELOAD": "/evil.so", "A": "1"}}, "--allow-env A,LD_PRELOAD"),
        ({"knobs": {"$LD_PRELOAD": ("/evil.so",)}}, "--allow-env LD_PRELOAD"),
        ({"fence": FenceOptions(FenceKind.OVERLAY)}, ""),
        ({"fence": FenceOptions(FenceKind.LANDLOCK)}, "--fence landlock"),
        ({"fence": FenceOptions(FenceKind.GUARD)}, "--fence guard"),
        ({"fence": FenceOptions(caches=(Path("my data"),))}, "--cache-dir 'my data'"),
        ({"python_options": ("-c", "import evil")}, "Start a new search."),
        ({"python_options": ("-X", "pycache_prefix=/evil")}, "Start a new search."),
    ],
)
def test_a_record_needs_the_words_of_the_user(changes: dict[str, Any], words: str) -> None:
    space = SearchSpace("mine", changes.pop("knobs", {}))
    options = SearchOptions(180.0, fence=changes.pop("fence", FenceOptions()))
    head = make_head(space, program=replace(PROGRAM, **changes), options=options)
    if not words:
        head.refuse_unless_said("one", head.variables, FenceOptions(), ())
        return
    with pytest.raises(UsageError) as refusal:
        head.refuse_unless_said("one", head.variables, FenceOptions(), ())
    assert words in str(refusal.value)
    assert ("autotune resume one" in str(refusal.value)) is words.startswith("--")
    if words.startswith("--"):
        head.refuse_unless_said("one", head.variables, options.fence, head.variables)
