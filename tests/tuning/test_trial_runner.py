"""The trial_runner with scripted rigs: which windows it asks for, and what it makes of them."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from itertools import chain, count, cycle, groupby, repeat
from typing import cast

import pytest

from autotune.measurement.batch_effect import BatchEffect
from autotune.measurement.block import Block
from autotune.measurement.interval import Interval
from autotune.measurement.measurement import Measurement
from autotune.measurement.outcome import Ending, Outcome
from autotune.measurement.run_mode import Epochs, RunMode
from autotune.measurement.stream import StreamModel
from autotune.measurement.visit import Visit
from autotune.program.applied_config import AppliedConfig
from autotune.program.config import Config, KnobValue
from autotune.program.flags import Flag
from autotune.results.blame import MAX_MORE_STEPS, judged
from autotune.results.record import TrialRecord
from autotune.results.speedups import reread, seen_in
from autotune.rig.rig_factory import RigFactory
from autotune.rig.wire import Ready, WindowPlan
from autotune.tuning.budget import Until
from autotune.tuning.live_rig import ANSWER_S
from autotune.tuning.trial_runner import BASELINE_EVERY, MAX_STARTS, TrialRunner
from tests.made import (
    make_applied,
    make_hardware,
    make_measurement,
    make_profile,
    make_record,
    make_space,
)

SPACE = make_space(["num_workers", "batch_size", "compile"]).resolve(
    make_hardware(), make_profile()
)
BASE = SPACE.baseline
OTHER = SPACE.canonical(BASE.replace(num_workers=1))
COMPILED = SPACE.canonical(BASE.replace(compile="default"))

Answer = float | Ending | Measurement


class ScriptedRigs:
    """RigFactory whose windows are as fast as scripted; keeps what was asked of them."""

    def __init__(self, rates: dict[Config, Iterator[Answer]]) -> None:
        self.clock = partial(next, count(0.0, 0.5))  # seconds: each look takes half of one
        self.rates = rates
        self.started = 0
        self.hardware = make_hardware()
        self.asked: list[tuple[int, Config, WindowPlan]] = []
        self.settings: list[AppliedConfig] = []
        self.records: list[TrialRecord] = []  # of the baseline
        self.mode = RunMode()

    def take_mode(self, mode: RunMode) -> None:
        self.mode = mode

    def learn(self, ending: Ending, *, as_written: bool = True) -> bool:
        if ending.suspect is None or ending.suspect is self.mode.epochs:
            return False
        self.mode = replace(self.mode, epochs=ending.suspect)
        return True

    def new(self) -> ScriptedRig:
        self.started += 1
        return ScriptedRig(self)

    @property
    def configs(self) -> list[Config]:
        return [config for _, config, _ in self.asked]


class ScriptedRig:
    """One of them."""

    asked = None

    def __init__(self, rigs: ScriptedRigs) -> None:
        self.rigs, self.number = rigs, rigs.started
        self.steps = 0

    def open(self, *_: object) -> Ready:
        """Start at once."""
        return Ready(make_profile(), 0.0)

    def close(self) -> None:
        """End at once."""

    def measure(self, applied: AppliedConfig, plan: WindowPlan, *_: object) -> Measurement | Ending:
        self.rigs.settings.append(applied)
        self.rigs.asked.append((self.number, applied.config, plan))
        answer = next(self.rigs.rates[applied.config])
        if isinstance(answer, float):
            answer = make_measurement(answer, spread_pct=0.5)
        if isinstance(answer, Measurement):
            self.steps += sum(block.steps for block in answer.blocks)
        return answer


def scripted(**rates: Iterator[Answer]) -> tuple[ScriptedRigs, TrialRunner]:
    """Return rigs and an trial_runner that has measured the baseline and nothing else."""
    configs = {"base": BASE, "other": OTHER, "compiled": COMPILED}
    rigs = ScriptedRigs({configs[name]: answers for name, answers in rates.items()})
    trial_runner = TrialRunner(cast("RigFactory", rigs))
    trial_runner.observe(never)
    trial_runner.set_up(SPACE, make_applied(BASE))
    rigs.records.append(trial_runner.baseline(never))
    rigs.asked.clear()
    return rigs, trial_runner


def never() -> Ending | None:
    return None


def speedup(*records: TrialRecord) -> Interval:
    """Return what all visits say of the last record's config; the first is the baseline's."""
    found = reread(records, StreamModel(seen_in(records)))[-1].speedup
    assert found is not None
    return found


def test_a_trial_is_one_visit_and_all_visits_of_a_config_count() -> None:
    rigs, trial_runner = scripted(base=repeat(1000.0), other=repeat(1020.0))
    first, again = (trial_runner(OTHER, "a test", never) for _ in range(2))
    assert rigs.configs == [OTHER, OTHER]
    assert len(first.visits) == len(again.visits) == 1
    by_one = speedup(*rigs.records, first)
    by_both = speedup(*rigs.records, first, again)
    assert by_both.estimate == pytest.approx(1.02, abs=0.01)
    assert by_both.half_width_pct < by_one.half_width_pct


def test_the_baseline_is_visited_now_and_then() -> None:
    rigs, trial_runner = scripted(base=repeat(1000.0), other=repeat(500.0))
    records = [trial_runner(OTHER, "a test", never) for _ in range(2 * BASELINE_EVERY)]
    between = [len(list(part)) for config, part in groupby(rigs.configs) if config == OTHER]
    assert set(between[:-1]) == {BASELINE_EVERY - 1}
    assert sum(len(record.baseline_visits) for record in records) == rigs.configs.count(BASE)


def test_where_steps_are_fixed_a_larger_batch_is_worth_what_it_does_to_the_time_of_a_step() -> None:
    larger = BASE.replace(batch_size=4 * int(BASE["batch_size"]))
    rigs = ScriptedRigs({BASE: repeat(1000.0), larger: repeat(2000.0)})
    trial_runner = TrialRunner(cast("RigFactory", rigs))
    trial_runner.observe(never)
    for bound, worth in (("", 2.0), ("train.py:57: for step in range(200)", 0.5)):
        trial_runner.set_up(SPACE, make_applied(BASE, baseline=BASE, bounded_by_steps=bound))
        base = trial_runner.baseline(never)
        record = trial_runner(larger, "a test", never)
        assert speedup(base, record).estimate == pytest.approx(worth, rel=0.06)


@pytest.mark.parametrize(("samples", "worth"), [(200, 0.95), (100, 1.9)])
def test_whether_more_ranks_are_more_samples_of_a_fixed_step_is_seen_where_a_program_says_it(
    samples: int, worth: float
) -> None:
    def measured(rate: float, samples: int) -> Measurement:
        blocks = (Block(2 * samples, 2, 0.1, 0.0),) * 10
        return replace(make_measurement(rate), blocks=blocks)

    other = BASE.replace(num_workers=1)  # any: the program makes of it what it will
    rigs = ScriptedRigs(
        {BASE: repeat(measured(1000.0, 100)), other: repeat(measured(1900.0, samples))}
    )
    trial_runner = TrialRunner(cast("RigFactory", rigs))
    trial_runner.observe(never)
    applied = make_applied(
        BASE, baseline=BASE, bounded_by_steps="max_steps=200", distributes_itself="Lightning"
    )
    trial_runner.set_up(SPACE, applied)
    base = trial_runner.baseline(never)
    record = trial_runner(other, "a test", never)
    assert speedup(base, record).estimate == pytest.approx(worth, rel=0.06)


def test_a_flag_that_is_not_the_batch_of_the_training_is_refused_by_what_is_seen() -> None:
    """Its name says so, but a step has the samples that it had, or the square of the growth."""

    def measured(samples: int) -> Measurement:
        blocks = (Block(2 * samples, 2, 0.1, 0.0),) * 10
        return replace(make_measurement(1000.0), blocks=blocks)

    larger = BASE.replace(batch_size=4 * int(BASE["batch_size"]))
    flag = Flag("--batch-size", (), int(BASE["batch_size"]), "int")
    for samples, outcome in (
        (400, Outcome.OK),
        (360, Outcome.OK),  # the last batch of an epoch is smaller
        (100, Outcome.CONFLICT),
        (1600, Outcome.CONFLICT),
    ):
        rigs = ScriptedRigs({BASE: repeat(measured(100)), larger: repeat(measured(samples))})
        trial_runner = TrialRunner(cast("RigFactory", rigs))
        trial_runner.observe(never)
        applied = make_applied(BASE, baseline=BASE, flags={"batch_size": flag})
        trial_runner.set_up(SPACE, applied)
        trial_runner.baseline(never)
        record = trial_runner(larger, "a test", never)
        assert record.outcome is outcome
        if record.ending is not None:
            assert "--batch-size" in record.ending.reason
            assert "the learning rate must not follow it" in record.ending.reason


def test_a_machine_that_proves_noisy_makes_the_same_visits_claim_less() -> None:
    swinging: Iterator[Answer] = cycle([1200.0, 1000.0, 1400.0, 1000.0, 1400.0])
    widths = []
    for rates in (swinging, repeat(1200.0)):
        rigs, trial_runner = scripted(base=repeat(1000.0), other=rates)
        records = [trial_runner(OTHER, "a test", never) for _ in range(6)]
        widths.append(speedup(*rigs.records, *records).half_width_pct)
    assert widths[0] > 2 * widths[1]


def test_a_program_that_ends_in_the_first_turn_is_started_once_more() -> None:
    ending = Ending(Outcome.RAN_OUT, "the program came to its end")
    rigs, trial_runner = scripted(base=repeat(1000.0), other=iter([500.0, ending, 500.0]))
    trial_runner(OTHER, "a test", never)
    rigs.asked.clear()
    record = trial_runner(OTHER, "a test", never)
    assert record.outcome is Outcome.OK
    assert [number for number, _, _ in rigs.asked] == [1, 2, 2], "a new rig is anchored anew"
    assert rigs.configs == [OTHER, BASE, OTHER]
    assert not rigs.mode.brief


def test_a_process_that_ends_while_the_baseline_is_measured_before_a_config_is_replaced() -> None:
    ending = Ending(Outcome.RAN_OUT, "the program came to its end")
    base: Iterator[Answer] = chain([1000.0, ending], repeat(1000.0))
    rigs, trial_runner = scripted(base=base, other=iter([500.0, ending, 500.0]))
    for _ in range(2):
        record = trial_runner(OTHER, "a test", never)
        assert record.outcome is Outcome.OK
    assert rigs.mode.brief
    processes = [(1, OTHER), (1, OTHER), (2, BASE), (3, BASE), (4, OTHER)]
    assert [(n, c) for n, c, _ in rigs.asked] == processes


def test_each_config_has_a_process_of_its_own_where_none_lives_through_two_windows() -> None:
    ending = Ending(Outcome.RAN_OUT, "the program came to its end")
    rigs = ScriptedRigs({BASE: iter([ending, 1000.0, 500.0]), OTHER: iter([800.0, 600.0])})
    trial_runner = TrialRunner(cast("RigFactory", rigs))
    trial_runner.observe(never)
    trial_runner.set_up(SPACE, make_applied(BASE))
    base = trial_runner.baseline(never)
    assert base.outcome is Outcome.OK
    assert rigs.mode.brief
    found = speedup(base, *(trial_runner(OTHER, "a test", never) for _ in range(2)))
    assert found.low < 0.8, "it was 0.8x"
    assert found.high > 1.2, "and then 1.2x"
    processes = [(1, BASE), (2, BASE), (3, OTHER), (4, BASE), (5, OTHER)]
    assert [(n, c) for n, c, _ in rigs.asked] == processes, "the machine may drift between two"


def test_a_config_that_ends_a_program_early_tells_nothing_of_its_length() -> None:
    steps = sum(block.steps for block in make_measurement(1000.0).blocks)
    for made, is_brief in ((steps - 1, False), (steps, True)):
        early = Ending(Outcome.RAN_OUT, f"the program ended after {made} steps", steps=made)
        rigs, trial_runner = scripted(
            base=repeat(1000.0), compiled=repeat(early), other=repeat(early)
        )
        record = trial_runner(OTHER, "a test", never)
        assert rigs.mode.brief is is_brief
        said = "" if is_brief else ", but as written it goes on"
        assert record.ending is not None
        assert record.ending.reason == f"the program ended after {made} steps{said}"


def test_a_program_that_ends_before_anything_was_measured_is_not_started_for_ever() -> None:
    ending = Ending(Outcome.RAN_OUT, "the program came to its end")
    rigs = ScriptedRigs({BASE: repeat(ending)})
    trial_runner = TrialRunner(cast("RigFactory", rigs))
    trial_runner.observe(never)
    trial_runner.set_up(SPACE, make_applied(BASE))
    assert trial_runner.baseline(never).outcome is Outcome.RAN_OUT
    assert rigs.started <= MAX_STARTS


def crashed(said: str, steps: int, line: int = 7, **more: object) -> Ending:
    trace = f'File "/home/user/train.py", line {line}, in train'
    ending = Ending(Outcome.CRASHED, said, trace, steps=steps, steps_under_config=steps)
    return replace(ending, **more)  # type: ignore[arg-type]


def test_a_failure_beyond_the_epoch_changes_the_mode_and_is_no_trial_of_its_own() -> None:
    beyond = crashed("ZeroDivisionError: modulo by zero", 30, suspect=Epochs.TRUE)
    rigs, trial_runner = scripted(base=repeat(1000.0), other=chain([beyond], repeat(1200.0)))
    record = trial_runner(OTHER, "a test", never)
    assert rigs.mode.epochs is Epochs.TRUE
    assert record.outcome is Outcome.OK
    assert rigs.configs[:3] == [OTHER, BASE, OTHER], "nothing is compared across modes"


def test_a_config_is_blamed_for_a_crash_that_the_baseline_lives_through() -> None:
    steps_of_a_window = sum(b.steps for b in make_measurement(1000.0).blocks)
    for steps, outcome, windows in (
        (steps_of_a_window, Outcome.CRASHED, []),
        (steps_of_a_window + 1, Outcome.CRASHED, [BASE, BASE]),
        (steps_of_a_window + MAX_MORE_STEPS + 1, Outcome.UNCLEAR, [BASE]),
    ):
        ending = crashed("RuntimeError: bf16", steps)
        rigs, trial_runner = scripted(base=repeat(1000.0), other=repeat(ending))
        record = trial_runner(OTHER, "a test", never)
        assert (record.outcome, rigs.configs) == (outcome, [OTHER, *windows])
        assert record.ending is not None
        assert record.ending.reason.startswith("RuntimeError: bf16")


def test_a_crash_at_once_after_a_switch_needs_no_further_evidence() -> None:
    ending = crashed("RuntimeError: bf16", 10_000, steps_under_config=1)
    rigs, trial_runner = scripted(base=repeat(1000.0), other=repeat(ending))
    assert trial_runner(OTHER, "a test", never).outcome is Outcome.CRASHED
    assert rigs.configs == [OTHER]


def test_what_the_baseline_fails_at_as_well_is_not_the_configs() -> None:
    for again, outcome in ((7, Outcome.FAILS_AS_WRITTEN), (8, Outcome.UNCLEAR)):
        ending = crashed("OSError: no more", 5000)
        base: Iterator[Answer] = iter([1000.0, crashed("OSError: no more", 4000, again)])
        _, trial_runner = scripted(base=base, other=repeat(ending))
        record = trial_runner(OTHER, "a test", never)
        assert record.outcome is outcome


def test_the_same_exception_at_the_same_line_under_configs_with_nothing_in_common_is_nobodys() -> (
    None
):
    def failed(said: str, line: int = 7, **changes: KnobValue) -> TrialRecord:
        ending = crashed(said, 5, line)
        return replace(make_record(BASE.replace(**changes)), ending=ending, measurement=None)

    workers, batch = failed("KeyError: 3", num_workers=1), failed("KeyError: 3", batch_size=128)
    both = failed("KeyError: 3", num_workers=1, batch_size=128)
    elsewhere = failed("KeyError: 3", line=9, batch_size=128)
    memory = replace(batch, ending=Ending(Outcome.OUT_OF_MEMORY, "the device ran out of memory"))
    for records, outcomes in (
        ((workers, batch), [Outcome.UNCLEAR, Outcome.UNCLEAR]),
        ((workers, both), [Outcome.CRASHED, Outcome.CRASHED]),
        ((workers, elsewhere), [Outcome.CRASHED, Outcome.CRASHED]),
        ((memory, memory), [Outcome.OUT_OF_MEMORY, Outcome.OUT_OF_MEMORY]),
    ):
        assert [record.outcome for record in judged(records, BASE)] == outcomes
    reason = judged([workers, batch], BASE)[0].ending
    assert reason is not None
    assert reason.reason == (
        "KeyError: 3 (it also fails so under batch_size=128, which changes other knobs: the "
        "program or autotune is the cause)"
    )


def test_a_config_with_a_process_of_its_own_is_compared_across_processes() -> None:
    """What processes differ by is not what windows differ by, so it is assumed anew."""
    rigs, trial_runner = scripted(
        base=repeat(1000.0), other=repeat(1010.0), compiled=repeat(1100.0)
    )
    records = [trial_runner(OTHER, "a test", never) for _ in range(12)]
    live = speedup(*rigs.records, *records)
    rigs.asked.clear()
    record = trial_runner(COMPILED, "a test", never)
    assert rigs.configs == [COMPILED]
    assert len(record.visits) == 1
    apart = speedup(*rigs.records, *records, record)
    assert apart.half_width_pct > 1.8 * live.half_width_pct


def test_a_window_below_the_floor_is_ended_early_and_without_one_measured_to_its_end() -> None:
    for floor in (1200.0, None):
        rigs, trial_runner = scripted(base=repeat(1000.0), other=repeat(500.0))
        trial_runner(OTHER, "a test", never, floor)
        assert [plan.give_up_below for _, _, plan in rigs.asked] == [floor]


def test_the_baseline_is_as_fast_as_itself() -> None:
    rigs = ScriptedRigs({BASE: repeat(1000.0)})
    trial_runner = TrialRunner(cast("RigFactory", rigs))
    trial_runner.observe(never)
    trial_runner.set_up(SPACE, make_applied(BASE))
    record = trial_runner.baseline(never)
    assert speedup(record) == Interval(1.0, 1.0, 1.0)
    assert [visit.log_rate for visit in record.visits] == [pytest.approx(math.log(1000.0))]


# --- time that runs out ---------------------------------------------------------------------------


def until(left_s: Iterator[float]) -> Until:
    """Return an Until that has these seconds left, one after the other."""
    return Until(never, lambda: next(left_s), "no time")


def test_every_window_ends_before_its_caller_gives_up() -> None:
    rigs, trial_runner = scripted(base=repeat(1000.0), other=repeat(1020.0))
    trial_runner(OTHER, "a test", until(repeat(30.0)))
    assert {plan.most_s for _, _, plan in rigs.asked} == {30.0 - ANSWER_S}
    rigs.asked.clear()
    trial_runner(OTHER, "a test", never)
    assert {plan.most_s for _, _, plan in rigs.asked} == {None}


@pytest.mark.parametrize(("left_s", "most_s"), [(100.0, 50.0), (20.0, 15.0), (8.0, 8.0)])
def test_the_baseline_leaves_time_for_trials_where_there_is_any(
    left_s: float, most_s: float
) -> None:
    rigs = ScriptedRigs({BASE: repeat(1000.0)})
    trial_runner = TrialRunner(cast("RigFactory", rigs))
    trial_runner.observe(never)
    trial_runner.set_up(SPACE, make_applied(BASE))
    trial_runner.baseline(until(repeat(left_s)))
    ((_, _, plan),) = rigs.asked
    assert plan.most_s == pytest.approx(most_s - ANSWER_S)


def test_a_disturbed_window_is_kept_when_there_is_no_time_for_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rigs, trial_runner = scripted(base=repeat(1000.0), other=repeat(400.0))
    monkeypatch.setattr(Measurement, "disturbed_share", 1.0)
    record = trial_runner(OTHER, "a test", until(repeat(0.0)), 1.0)
    assert rigs.configs == [OTHER]
    assert record.measurement is not None


LARGER = BASE.replace(batch_size=4 * int(BASE["batch_size"]))
LARGEST = BASE.replace(batch_size=8 * int(BASE["batch_size"]))


def with_effect(effect: BatchEffect) -> tuple[ScriptedRigs, TrialRunner]:
    """Return what has measured the baseline, and will see a larger batch do this."""
    seen = replace(make_measurement(1000.0), effect=effect)
    rigs = ScriptedRigs(
        {BASE: repeat(1000.0), LARGER: repeat(seen), LARGEST: repeat(1000.0), OTHER: repeat(1000.0)}
    )
    trial_runner = TrialRunner(cast("RigFactory", rigs))
    trial_runner.observe(never)
    trial_runner.set_up(SPACE, make_applied(BASE))
    trial_runner.baseline(never)
    return rigs, trial_runner


def test_a_program_of_which_a_part_keeps_its_batch_is_tried_with_another_one_once() -> None:
    rigs, trial_runner = with_effect(BatchEffect(4.0, 1.0, 1.0, "Generator"))
    for config in (LARGER, LARGEST):
        record = trial_runner(config, "a test", never)
        assert record.outcome is Outcome.CONFLICT
        assert record.ending is not None
        assert "calls Generator with 64 samples at any batch size" in record.ending.reason
    assert LARGEST not in rigs.configs
    assert trial_runner(OTHER, "a test", never).outcome is Outcome.OK


def test_what_gradients_do_with_the_batch_is_known_to_all_later_trials() -> None:
    rigs, trial_runner = with_effect(BatchEffect(4.0, 4.0, 4.0))
    trial_runner(LARGER, "a test", never)
    trial_runner(OTHER, "a test", never)
    assert [applied.sums for applied in rigs.settings[:1]] == [None]
    assert rigs.settings[-1].sums is True


def asking(
    *answers: Answer, mode: RunMode, **changes: KnobValue
) -> tuple[ScriptedRigs, TrialRunner]:
    """Return what has measured the baseline and knows nothing of its losses."""
    config = SPACE.canonical(LARGER.replace(**changes))
    rigs = ScriptedRigs(
        {BASE: repeat(1000.0), LARGER: iter(answers), config: repeat(1000.0)}
        if config != LARGER
        else {BASE: repeat(1000.0), LARGER: iter([*answers, *[1000.0] * 9])}
    )
    trial_runner = TrialRunner(cast("RigFactory", rigs))
    trial_runner.observe(never)
    trial_runner.set_up(SPACE, make_applied(BASE))
    trial_runner.baseline(never)
    rigs.take_mode(mode)
    rigs.asked.clear()
    rigs.settings.clear()
    return rigs, trial_runner


def test_a_batch_that_is_tried_in_fresh_processes_alone_is_first_asked_about_on_the_baselines() -> (
    None
):
    sums = replace(make_measurement(1000.0), effect=BatchEffect(4.0, 4.0, 4.0))
    for mode, changes in ((RunMode(), {"compile": "default"}), (RunMode(brief=True), {})):
        config = SPACE.canonical(LARGER.replace(**changes))
        rigs, trial_runner = asking(sums, mode=mode, **changes)
        assert trial_runner(config, "a test", never).outcome is Outcome.OK
        assert rigs.configs[0] == LARGER
        assert rigs.settings[0].sums is None
        tried = [s.sums for s in rigs.settings[1:] if s.config == config]
        assert tried
        assert all(tried)


def test_a_resumed_search_may_ask_of_the_batch_before_it_visits_the_baseline() -> None:
    """The question is no visit, and the baseline's steps are known from its record."""
    answer = replace(make_measurement(1000.0), effect=BatchEffect(4.0, 4.0, 4.0))
    config = SPACE.canonical(LARGER.replace(compile="default"))
    rigs = ScriptedRigs({BASE: repeat(1000.0), LARGER: iter([answer]), config: repeat(1500.0)})
    trial_runner = TrialRunner(cast("RigFactory", rigs))
    earlier = replace(make_record(BASE), visits=(Visit(1, 1e6, math.log(1000.0), 0.01),))
    base = make_applied(BASE, baseline=BASE, bounded_by_steps="train.py:57: for step in range(9)")
    trial_runner.set_up(SPACE, base, 0.1, [earlier])
    record = trial_runner(config, "a test", never)
    assert rigs.configs[0] == LARGER
    assert record.outcome is Outcome.OK
    assert len(record.visits) == 1
    assert record.visits[0].at_s > 1e6, "it comes after those of the earlier session"


def test_a_program_that_ends_before_its_loss_is_known_keeps_its_batch() -> None:
    ended = Ending(Outcome.RAN_OUT, "the program ended after 20 steps")
    full = Ending(Outcome.OUT_OF_MEMORY, "the device ran out of memory")
    for answers in ((ended, ended), (full,)):
        _, trial_runner = asking(*answers, mode=RunMode(brief=True))
        record = trial_runner(LARGER, "a test", never)
        assert record.outcome is Outcome.CONFLICT, "the config itself was not tried"
        assert record.ending is not None
        assert "a sum or a mean over samples" in record.ending.reason
        assert answers[0].reason in record.ending.reason
