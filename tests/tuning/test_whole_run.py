"""What a search says about whole epochs and the whole training, in virtual time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.cli.search_report import show
from autotune.measurement.epochs.epoch import EpochSeen, OtherPass, RunLength
from autotune.measurement.epochs.interruption import Interruptions, interruptions_s
from autotune.measurement.goal import Goal, Objective
from autotune.measurement.interval import Interval
from autotune.program.config import Config, KnobValue
from autotune.program.evaluation import EvaluationTrials, PassTrial, loader_key
from autotune.report import worth
from autotune.report.worth import Training
from autotune.results import bestfile
from autotune.results.epochs.estimate import whole_run
from autotune.results.epochs.timed_run import Loop, RunFacts, TimedRun
from autotune.results.epochs.whole_run import WholeRun
from autotune.results.result import Finding, SearchResult
from autotune.tuning.budget import ENDING_S
from autotune.tuning.session import EPOCHS_SHARE, least_timed_s
from autotune.tuning.timed_runs import pass_seconds
from autotune.tuning.whole_run import needed_budget_s
from tests.made import make_loader, make_profile
from tests.scripted import Script, Searched, begin

KNOBS: dict[str, tuple[KnobValue, ...]] = {"num_workers": (0, 1, 2), "pin_memory": (False, True)}
SPEEDS: dict[str, dict[KnobValue, float]] = {"num_workers": {1: 1.5, 2: 2.0}}
LOOP_S = 10.0  # of an epoch as written: 10,000 samples at 1,000 a second


def found(folder: Path, budget_s: float = 180.0, **script: Any) -> SearchResult:
    length = RunLength(30.0, "train.py:5: for epoch in range(30)")
    profile = make_profile(length=length)
    options = {"noise": 0.02, "process_noise": 0.01, "profile": profile, "start_s": 3.0}
    return begin(folder, Script(SPEEDS, **{**options, **script}), KNOBS).go_on(budget_s)


def told(result: SearchResult, folder: Path, capsys: pytest.CaptureFixture[str]) -> str:
    show(result, folder / "best.yaml")
    return " ".join(capsys.readouterr().out.split())


def test_the_whole_epoch_gains_less_than_its_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = found(tmp_path, evaluation_s=lambda _: 6.0)
    assert result.finding is Finding.FASTER
    assert result.speedup.low <= 2.0 <= result.speedup.high
    whole = result.whole_run
    assert whole is not None
    assert whole.speedup is not None
    assert whole.before.seconds.low <= LOOP_S + 6 <= whole.before.seconds.high
    assert whole.speedup.low <= (LOOP_S + 6) / (LOOP_S / 2 + 6) <= whole.speedup.high
    assert whole.speedup.high < result.speedup.low
    out = told(result, tmp_path, capsys)
    assert "A whole epoch, estimated from short passes: 16 s" in out
    assert "The whole training, estimated: 30 epochs (train.py:5: for epoch in range(30)), a" in out
    assert "Of the epoch: training steps 62% → 45%, evaluation 37% → 54%." in out
    assert "steps, with the start of their loader, give at most 2.7x." in out
    section = bestfile.read(result.save(tmp_path / "best.yaml")).whole_run
    assert section is not None
    assert section.epochs == 30
    assert section.speedup is not None
    assert section.speedup["low"] < section.speedup["high"]


@pytest.mark.parametrize(("startup_s", "step_s"), [(0.5, 0.01), (3.0, 0.1), (3.0, 2.0)])
def test_the_budget_that_is_advised_leaves_the_time(startup_s: float, step_s: float) -> None:
    told_s = needed_budget_s(startup_s, step_s)
    slot_s = EPOCHS_SHARE * told_s
    assert slot_s - startup_s - ENDING_S >= least_timed_s(step_s) - 1e-9


def test_epochs_that_fit_are_timed_as_a_whole() -> None:
    run_s = 10.0
    assert pass_seconds(run_s, 2.0) > 2.0
    assert pass_seconds(run_s, 2.0) + 2.0 < run_s / 2, "two epochs fit, with their evaluation"
    assert pass_seconds(run_s, 3.0) == pass_seconds(run_s, None) < 3.0


def test_a_longer_budget_times_the_epochs_that_a_short_one_did_not_see(tmp_path: Path) -> None:
    searched = begin(tmp_path, Script(SPEEDS, noise=0.02, start_s=3.0), KNOBS)
    searched.go_on(180.0)
    study = searched.study
    own = study.timed_runs[0].config
    assert study.timed(own) is not None
    study.add_timed(TimedRun(own, (), 1.0, "no epoch of it ended in time"))
    assert study.timed(own, number=1) is None


def test_without_an_evaluation_in_cut_epochs_nothing_is_said_of_their_speedup(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = found(tmp_path, evaluation_s=lambda _: 0.0)
    assert result.finding is Finding.FASTER
    assert result.whole_run is None
    steps = result.training_steps
    assert steps is not None
    assert steps.run_seconds["best"] < steps.run_seconds["baseline"]
    out = told(result, tmp_path, capsys)
    assert "No evaluation was seen in epochs of 10 steps; one that comes later comes on top" in out
    profile = make_profile()
    told_nothing = found(tmp_path / "2", profile=profile, evaluation_s=lambda _: 0.0)
    assert told_nothing.training_steps is not None
    assert told_nothing.training_steps.run_seconds == {}
    assert "The training steps of a whole epoch, estimated: about 10 s →" in " ".join(
        told_nothing.training_steps.sentences
    )


def test_an_evaluation_that_only_the_search_was_long_enough_to_see_is_counted(
    tmp_path: Path,
) -> None:
    seen = Interruptions(later=9, batches=9000, seconds=18.0, largest_s=2.0, longest=1000)
    result = found(tmp_path, evaluation_s=lambda _: 0.0, interruptions=seen)
    whole = result.whole_run
    assert whole is not None
    assert whole.after is not None
    for side in (whole.before, whole.after):
        assert side.evaluation_s.estimate == pytest.approx(10_000 / 64 * 0.002)
        assert side.evaluation_s.low < side.evaluation_s.estimate < side.evaluation_s.high
    assert not whole.misses_evaluation


def test_what_processes_saw_between_steps_is_summed_up() -> None:
    assert interruptions_s([]) is None
    both = [Interruptions(3, 300, 0.6, 0.2, 100), Interruptions(1, 100, 0.2, 0.2, 100)]
    found = interruptions_s(both)
    assert found is not None
    assert found.estimate == pytest.approx(0.002)
    one = interruptions_s(both[1:])
    assert one is not None
    assert one.low < found.low, "one distance tells less than four"
    rare = interruptions_s([Interruptions(18, 3500, 21.7, 20.0, 200)])
    assert rare is not None
    assert rare.high > 0.0105, "0.1 s every 200 batches and 20 s every 2,000"
    clock = interruptions_s([Interruptions(20, 2000, 4.0, 0.2, 300)])
    assert clock is not None
    assert clock.low < 0.2 / 300 < clock.high, "at distances of up to 300 batches"


def test_where_two_runs_do_not_fit_the_program_as_written_is_timed(tmp_path: Path) -> None:
    searched = begin(
        tmp_path, Script(SPEEDS, noise=0.02, start_s=9.0, evaluation_s=lambda _: 6.0), KNOBS
    )
    result = searched.go_on(180.0)
    assert result.finding is Finding.FASTER
    own, *others = searched.study.timed_runs
    assert own.config == result.baseline
    assert own.cost_s + sum(run.cost_s for run in others) <= 18.0
    assert result.whole_run is not None
    assert result.whole_run.before.evaluation_s.estimate == pytest.approx(6.0, rel=0.1)


def test_the_epoch_in_which_a_model_is_compiled_tells_nothing_of_later_ones() -> None:
    def epoch(evaluation_s: float) -> EpochSeen:
        passes = (OtherPass("evaluated", 0.0, evaluation_s, 20),)
        return EpochSeen(5, 5, 0.1, 0.5, passes, compiles=evaluation_s > 1)

    own, compiled = Config({"compile": "off"}), Config({"compile": "default"})
    written = TimedRun(own, (epoch(0.2),) * 4, 10.0)
    loops = (Loop(Interval(100.0, 90.0, 110.0), 10.0, 50),) * 2
    for seen, evaluation_s, doubt in (
        ((epoch(27.0),), 0.2, "too few epochs were seen after the first"),
        ((epoch(27.0), epoch(0.1)), 0.1, ""),
        ((epoch(3.0), epoch(27.0), epoch(0.1), epoch(0.1)), 0.1, ""),
    ):
        runs = [written, TimedRun(compiled, seen, 10.0)]
        facts = RunFacts(RunLength(), 3.0)
        whole = whole_run(written, runs, compiled, loops, Interval(1.5, 1.4, 1.6), facts)
        assert whole is not None
        assert whole.after is not None
        assert whole.after.evaluation_s.estimate == pytest.approx(evaluation_s)
        assert doubt in whole.doubt
        assert bool(whole.doubt) is bool(doubt)


def test_epochs_of_differing_lengths_do_not_tell_how_long_the_training_takes() -> None:
    """As with pseudo-labels, which make each epoch longer, or loaders that train in turn."""
    length = RunLength(30.0, "train.py:5: for epoch in range(30)")
    own = Config({"num_workers": 0})
    loops = (Loop(Interval(100.0, 90.0, 110.0), 10.0, 50),) * 2

    def whole(batches: tuple[int, ...], length: RunLength) -> WholeRun:
        epochs = tuple(EpochSeen(n, n, 0.1, 0.1 * n, rest_s=0.1) for n in batches)
        written = TimedRun(own, (*epochs, replace(epochs[0], batches=1, is_last=True)), 10.0)
        facts = RunFacts(length, 3.0)
        found = whole_run(written, [written], None, loops, Interval(1.0, 1.0, 1.0), facts)
        assert found is not None
        return found

    for batches in ((20, 20, 20), (20, 21, 20), (100, 104, 103)):
        assert set(whole(batches, length).run_seconds) == {"baseline"}, batches
    growing = whole((16, 20, 24), length)
    assert not growing.run_seconds
    assert "not known: its epochs have 16 to 24 batches." in " ".join(growing.sentences)
    steps = replace(length, epochs=None, steps=1000.0)
    assert whole((16, 20, 24), steps).run_seconds, "its steps are counted instead"


def test_first_epochs_are_compared_with_first_epochs_and_bound_later_ones_from_above() -> None:
    def epochs(*evaluation_s: float) -> tuple[EpochSeen, ...]:
        passes = [(OtherPass("evaluated", 0.0, seconds, 20),) for seconds in evaluation_s]
        return tuple(EpochSeen(5, 5, 0.1, 0.5, its) for its in passes)

    own, other = Config({"num_workers": 0}), Config({"num_workers": 2})
    loops = (Loop(Interval(100.0, 90.0, 110.0), 10.0, 50),) * 2

    def whole(*seen: tuple[EpochSeen, ...], **length: Any) -> WholeRun:
        runs = [TimedRun(*one, 10.0) for one in zip((own, other), seen, strict=True)]
        facts = RunFacts(RunLength(**length), 3.0)
        found = whole_run(runs[0], runs, other, loops, Interval(1.5, 1.4, 1.6), facts)
        assert found is not None
        return found

    first = whole(epochs(2.0), epochs(2.0, 0.1, 0.1))
    assert first.after is not None
    assert first.after.evaluation_s.estimate == 2.0
    assert first.before.evaluation_s.low == first.after.evaluation_s.low == 0.0
    assert first.speedup is not None
    assert first.speedup.estimate < 1.5, "no more than the steps gain"
    assert "Only the first epoch was seen" in " ".join(first.sentences)
    only = whole(epochs(2.0), epochs(2.0, 0.1, 0.1), epochs=1.0)
    assert only.after is not None
    assert only.after.evaluation_s.estimate == 2.0
    assert only.before.evaluation_s.low > 1.0, "it is the only epoch of the training"
    later = whole(epochs(2.0, 0.1, 0.1), epochs(2.0))
    assert later.after is not None
    assert later.after.evaluation_s.estimate == pytest.approx(0.1)
    assert "too few epochs were seen" in later.doubt


def test_it_costs_at_most_a_tenth_of_the_budget(tmp_path: Path) -> None:
    searched = begin(tmp_path, Script(SPEEDS, noise=0.02, start_s=3.0), KNOBS)
    searched.go_on(180.0)
    runs = searched.study.timed_runs
    assert len(runs) == 2
    assert sum(run.cost_s for run in runs) <= 18.0


def test_a_config_that_slows_evaluation_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def seconds(config: Any) -> float:
        return 4.0 if config["num_workers"] == 2 else 2.0

    result = found(tmp_path, evaluation_s=seconds)
    assert result.finding is Finding.FASTER
    out = told(result, tmp_path, capsys)
    assert "Evaluation takes 3.9 s under this config, 2 s as written." in out


def test_a_faster_evaluation_loader_is_part_of_what_is_recommended(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = found(tmp_path, evaluation_s=lambda _: 6.0, evaluation_speedup=3.0)
    whole = result.whole_run
    assert whole is not None
    gain = whole.evaluation
    assert gain is not None
    assert gain.is_claimed
    assert gain.processes == 2
    assert gain.speedup.low <= 3.0 <= gain.speedup.high
    assert whole.after is not None
    assert whole.after.evaluation_s.estimate == pytest.approx(2.0, rel=0.1)
    out = told(result, tmp_path, capsys)
    assert "Faster evaluation: its loader of Items with num_workers=2: " in out
    file = bestfile.read(result.save(tmp_path / "best.yaml"))
    (loader,) = file.evaluation
    assert loader.options == {"num_workers": 2}
    assert file.applied.evaluation == file.evaluation


def test_a_faster_evaluation_takes_what_it_took_under_the_recommended_config() -> None:
    """Starting its four workers takes longer there, which says nothing of a pass without them."""
    facts = make_loader(dataset="Pictures", dataset_len=20, batch_size=1)
    key = loader_key(facts)
    options: dict[str, KnobValue] = {"num_workers": 0}

    def timed(config: Config, own_s: float, other_s: float) -> TimedRun:
        epoch = EpochSeen(5, 5, 0.1, 0.5, (OtherPass(key, 0.0, own_s, 20),))
        passes = [PassTrial({}, 0.14, is_chosen=True), PassTrial(options, other_s, is_chosen=True)]
        tried = EvaluationTrials(facts, (*passes, *reversed(passes)))
        return TimedRun(config, (epoch,) * 4, 10.0, tried=tried)

    own, best = Config({"num_workers": 8}), Config({"num_workers": 0})
    runs = [timed(own, 0.14, 0.014), timed(best, 0.28, 0.014)]
    loops = (Loop(Interval(100.0, 90.0, 110.0), 10.0, 50),) * 2
    known = RunFacts(RunLength(), 3.0)
    whole = whole_run(runs[0], runs, best, loops, Interval(1.5, 1.4, 1.6), known)
    assert whole is not None
    assert whole.evaluation is not None
    assert whole.evaluation.is_claimed
    assert whole.after is not None
    assert whole.after.evaluation_s.estimate == pytest.approx(0.014)
    assert whole.after.evaluation_s.low < 0.014 < whole.after.evaluation_s.high


def test_without_a_faster_config_a_faster_evaluation_is_still_used(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = Script(noise=0.02, start_s=3.0, evaluation_s=lambda _: 6.0, evaluation_speedup=3.0)
    result = begin(tmp_path, script, KNOBS).go_on(180.0)
    assert result.finding is not Finding.FASTER
    assert result.whole_run is not None
    assert result.whole_run.evaluation is not None
    assert result.whole_run.evaluation.is_claimed
    assert "autotune run" in told(result, tmp_path, capsys)
    (saved,) = worth.sentences(result, Training(hours=10.0))
    assert saved.startswith("A training of 10 h takes ")


def test_the_hours_of_a_training_are_told_by_whole_epochs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = Script(SPEEDS, noise=0.02, start_s=3.0, evaluation_s=lambda _: 6.0)
    result = begin(tmp_path, script, KNOBS, goal=Goal(hours=10.0)).go_on(180.0)
    out = told(result, tmp_path, capsys)
    assert "A training of 10 h takes 6 h" in out or "A training of 10 h takes 7 h" in out
    assert "by the speedup of whole epochs" in out


def test_a_budget_that_is_too_short_times_only_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = found(tmp_path, 60.0, start_s=5.5, evaluation_s=lambda _: 6.0)
    assert result.whole_run is None
    assert result.training_steps is not None
    seconds = result.training_steps.run_seconds
    assert seconds["baseline"] == pytest.approx(5.5 + 30 * LOOP_S, rel=0.05)
    assert seconds["best"] == pytest.approx(5.5 + 30 * LOOP_S / 2, rel=0.05)
    out = told(result, tmp_path, capsys)
    assert "The training steps of the whole training, estimated: 30 epochs (train.py:5: for" in out
    assert "Evaluation and checkpoints, which were not timed, come on top." in out


def test_a_program_that_counts_its_steps_is_told_how_long_they_take(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    length = RunLength(steps=5000, where="train.py:5: for step in range(5000)")
    profile = make_profile(length=length, bounded_by_steps=length.where)
    result = found(tmp_path, profile=profile, evaluation_s=lambda _: 6.0)
    whole = result.whole_run
    assert whole is not None
    epoch_s = whole.before.seconds.estimate
    seconds = whole.run_seconds
    assert seconds["baseline"] == pytest.approx(3 + 5000 / whole.before.steps * epoch_s)
    assert seconds["best"] < seconds["baseline"]
    assert "estimated: 5,000 steps (train.py:5: for step in" in told(result, tmp_path, capsys)
    section = bestfile.read(result.save(tmp_path / "best.yaml")).whole_run
    assert section is not None
    assert section.steps == 5000
    assert section.run_seconds == {side: round(s, 1) for side, s in seconds.items()}
    interval = section.run_intervals["baseline"]
    assert interval is not None
    assert interval["low"] < seconds["baseline"] < interval["high"]
    assert 0 < section.timing_seconds <= 18.0


def test_all_processes_of_the_program_as_written_tell_its_epochs() -> None:
    own = Config({"num_workers": 0})
    epoch = EpochSeen(10, 10, 0.0, 1.0, rest_s=1.0)
    slow, fast = (TimedRun(own, (replace(epoch, rest_s=s),) * 4, 5.0) for s in (3.0, 1.0))
    alone = TimedRun(own, (replace(epoch, rest_s=9.0),), 5.0)  # its first epoch
    loop = Loop(Interval(1000.0, 990.0, 1010.0), 100.0, 1000)
    facts = RunFacts(RunLength(), 2.0)
    even = Interval(1.0, 1.0, 1.0)
    for others, rest_s in (([slow], 3.0), ([slow, fast], 2.0), ([slow, fast, alone], 2.0)):
        whole = whole_run(slow, others, None, (loop, loop), even, facts)
        assert whole is not None
        assert whole.before.rest_s.estimate == pytest.approx(rest_s)
        assert whole.timing_s == 5.0 * len(others)


def test_a_short_training_counts_the_seconds_in_which_python_ends(tmp_path: Path) -> None:
    for number, (epochs, exit_s, counted_s) in enumerate(
        ((3, 1.5, 1.5), (3, None, 0.0), (30, 1.5, 0.0))
    ):
        profile = make_profile(length=RunLength(epochs=epochs, where="train.py:5"))
        folder = tmp_path / str(number)
        folder.mkdir()
        whole = found(folder, profile=profile, evaluation_s=lambda _: 6.0, exit_s=exit_s).whole_run
        assert whole is not None
        epochs_s = epochs * whole.before.seconds.estimate
        assert whole.run_seconds["baseline"] == pytest.approx(3 + epochs_s + counted_s)


def by_run_time(folder: Path, budget_s: float, start_s: float) -> tuple[Searched, SearchResult]:
    script = Script(SPEEDS, noise=0.02, start_s=start_s, evaluation_s=lambda _: 30.0)
    searched = begin(folder, script, KNOBS, goal=Goal(Objective.RUN_TIME))
    return searched, searched.go_on(budget_s)


def test_the_run_time_objective_counts_what_lies_around_the_loop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The loop takes 10 s of an epoch as written, and evaluation 30 s."""
    searched, result = by_run_time(tmp_path, 180.0, start_s=3.0)
    around_s = searched.study.around_s
    assert around_s is not None
    assert around_s == pytest.approx(30.0 / 10_000, rel=0.05)
    assert result.finding is Finding.FASTER
    own_s = LOOP_S
    assert result.speedup.low <= (own_s + 30) / (own_s / 2 + 30) <= result.speedup.high
    assert "faster in whole epochs" in told(result, tmp_path, capsys)
    assert searched.study.result == result, "also where it is read again"
    assert len(searched.study.timed_runs) == 2, "the program as written is timed only once"


def test_where_epochs_cannot_be_timed_run_time_claims_nothing_about_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    searched, result = by_run_time(tmp_path, 140.0, start_s=9.0)
    assert searched.study.around_s is None
    assert result.finding is Finding.FASTER
    said = told(result, tmp_path, capsys)
    assert "x faster [" in said
    assert "faster in whole epochs" not in said


def test_by_run_time_a_winner_that_slows_evaluation_is_judged_by_its_epochs(
    tmp_path: Path,
) -> None:
    """The loop gains 5 s of an epoch, and the evaluation loses 30 s."""

    def seconds(config: Any) -> float:
        return 60.0 if config["num_workers"] == 2 else 30.0

    script = Script(SPEEDS, noise=0.02, start_s=3.0, evaluation_s=seconds)
    knobs: dict[str, tuple[KnobValue, ...]] = {"num_workers": (0, 2)}
    searched = begin(tmp_path, script, knobs, goal=Goal(Objective.RUN_TIME))
    result = searched.go_on(180.0)
    assert len(searched.study.timed_runs) == 2, "the winner's epochs were timed"
    assert result.finding is not Finding.FASTER
    assert result.best == result.baseline
    assert result.candidate_speedup is not None
    truth = (LOOP_S + 30) / (LOOP_S / 2 + 60)
    assert result.candidate_speedup.low <= truth <= result.candidate_speedup.high


def test_a_winner_that_compiles_leaves_the_comparison_to_the_program_as_written(
    tmp_path: Path,
) -> None:
    knobs: dict[str, tuple[KnobValue, ...]] = {"compile": ("off", "default")}
    speeds: dict[str, dict[KnobValue, float]] = {"compile": {"default": 2.0}}
    script = Script(
        speeds, noise=0.02, start_s=3.0, evaluation_s=lambda _: 6.0, evaluation_speedup=3.0
    )
    searched = begin(tmp_path, script, knobs)
    result = searched.go_on(240.0)
    assert result.best["compile"] == "default"
    own = [run for run in searched.study.timed_runs if run.config == result.baseline]
    assert [bool(run.tried) for run in own] == [True, True]
    assert result.whole_run is not None
    assert result.whole_run.evaluation is not None
    assert result.whole_run.evaluation.is_claimed
