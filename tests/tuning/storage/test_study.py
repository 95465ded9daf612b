"""The study: all that a run knows, in one Optuna storage, whole after any death."""

from __future__ import annotations

import math
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import optuna
import psutil
import pytest
from optuna.trial import FrozenTrial, TrialState

from autotune.errors import RunDirectoryError
from autotune.knobs.space.space import SearchSpace
from autotune.measurement.interval import LogRatio
from autotune.measurement.memory import Memory
from autotune.measurement.outcome import Ending, Outcome
from autotune.measurement.turn import Played
from autotune.program.config import Config
from autotune.program.lr import LrRule
from autotune.program.rehearsal import Rehearsal, RehearsalRecord
from autotune.results.record import (
    BaselineInfo,
    ClaimProcess,
    Lease,
    PlayedRounds,
    SearchOptions,
    TrialRecord,
)
from autotune.tuning.storage.study import Study
from tests.made import (
    A100,
    GIB,
    make_hardware,
    make_head,
    make_loader,
    make_measurement,
    make_profile,
    make_record,
    make_space,
    storage_in,
)

SEARCH_SPACE = make_space(["workers", "prefetch_factor", "batch_size", "flush_denormal"])
SPACE = SEARCH_SPACE.resolve(make_hardware(), make_profile())
ROOT = Path(__file__).parents[3]
MEMORY_OUTCOMES = (Outcome.OUT_OF_MEMORY, Outcome.HOST_OUT_OF_MEMORY, Outcome.SHARED_MEMORY)
OTHER_ENDINGS = tuple(o for o in Outcome if o is not Outcome.OK and o not in MEMORY_OUTCOMES)

# Another process that opens the run, does something, says so, and waits for its end.
OTHER_PROCESS = """
import sys
from autotune.tuning.storage.study import Study
from tests.tuning.storage.test_study import SPACE
study = Study.load(sys.argv[1], "autotune")
{work}
print("done", flush=True)
sys.stdin.read()
"""


@pytest.fixture
def study(tmp_path: Path) -> Study:
    return stored(tmp_path)


def stored(directory: Path) -> Study:
    """Return a new study in a file, as a search keeps it."""
    head = make_head(SEARCH_SPACE, options=SearchOptions(180.0))
    return Study.create(storage_in(directory), "autotune", head)


def loaded(directory: Path) -> Study:
    return Study.load(storage_in(directory), "autotune")


def trials(study: Study) -> list[FrozenTrial]:
    return study.optuna.get_trials(deepcopy=False)


def tell(study: Study, record: TrialRecord) -> FrozenTrial:
    """Record a trial and return what Optuna keeps of it."""
    trial = study.ask_for(record.config, SPACE)
    study.tell(trial, record)
    return trials(study)[-1]


@contextmanager
def other_process(directory: Path, work: str) -> Iterator[subprocess.Popen[str]]:
    """Run *work* in a living process, which ends with the block."""
    process = subprocess.Popen(
        [sys.executable, "-c", OTHER_PROCESS.format(work=work), storage_in(directory)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == "done\n"
        yield process
    finally:
        process.communicate()


def killed(directory: Path, work: str) -> None:
    """Run *work* in a process that is killed right after it."""
    with other_process(directory, work) as process:
        os.kill(process.pid, signal.SIGKILL)


# --- what is kept ---------------------------------------------------------------------------------


def test_a_run_is_read_back_by_another_process_as_it_was_written(tmp_path: Path) -> None:
    head = make_head(
        SearchSpace(
            "mine",
            {"workers": (0, 2), "compile": None},
            fixed={"memory_format": "channels_last", "precision": "bf16"},
            requested=frozenset({"compile", "precision"}),
        ),
        options=SearchOptions(90.0, LrRule.SQRT, seed=7),
        hardware=make_hardware(gpus=(A100,), warnings=("NVML is silent",), shm_bytes=None),
    )
    Study.create(storage_in(tmp_path), "autotune", head)
    assert loaded(tmp_path).head == head


def test_facts_and_spent_time_are_unknown_and_zero_until_written(
    study: Study, tmp_path: Path
) -> None:
    assert study.facts is None
    assert study.spent_s == 0
    facts = BaselineInfo(
        make_profile(loaders=(make_loader(), make_loader(ordinal=1)), config_reads={"hidden": 64}),
        startup_s=2.5,
        step_s=0.01,
        first_step_s=2.0,
    )
    study.facts = facts
    study.spent_s = 61.5
    assert loaded(tmp_path).facts == facts
    assert facts.before_steps_s == pytest.approx(1.99)
    assert replace(facts, first_step_s=None).before_steps_s == 2.5, "by an older version"
    assert replace(facts, step_s=3.0).before_steps_s == 0.0
    assert loaded(tmp_path).spent_s == 61.5


def test_every_kind_of_record_is_read_back_in_order(study: Study, tmp_path: Path) -> None:
    memory = Memory(1, None, 3 * GIB, 4)
    measured = make_record(SPACE.baseline, 1.0, "the program as written")
    assert measured.measurement is not None
    full = replace(
        make_record(SPACE.baseline.replace(workers=2), 1.25),
        measurement=replace(
            measured.measurement,
            samples_per_epoch=60_000,
            loss=0.5,
            memory=memory,
        ),
    )
    traceback = 'Traceback …\n  File "größe.py", line 1\nValueError: \x00\n'
    ended = [
        make_record(
            SPACE.baseline.replace(batch_size=128 * 2**place),
            Ending(outcome, f"because of {outcome}", traceback),
        )
        for place, outcome in enumerate((Outcome.OUT_OF_MEMORY, Outcome.CRASHED))
    ]
    unmeasured = replace(ended[0], rig=None, config=Config(SPACE.baseline))
    records = [measured, full, *ended, unmeasured]
    for record in records:
        tell(study, record)
    assert loaded(tmp_path).records == records
    assert [r.outcome for r in loaded(tmp_path).records][:3] == [
        Outcome.OK,
        Outcome.OK,
        Outcome.OUT_OF_MEMORY,
    ]


def test_a_loss_that_is_not_a_number_is_kept_as_one(study: Study, tmp_path: Path) -> None:
    for loss in (math.inf, math.nan):
        config = SPACE.baseline.replace(workers=int(math.isnan(loss)))
        tell(study, replace(make_record(config), measurement=make_measurement(loss=loss)))
    one, other = (record.measurement for record in loaded(tmp_path).records)
    assert one is not None
    assert other is not None
    assert one.loss == math.inf
    assert other.loss is not None
    assert math.isnan(other.loss)


def test_values_keep_their_types_so_that_true_is_not_one(study: Study, tmp_path: Path) -> None:
    tell(study, make_record({**SPACE.baseline, "keep_freed_memory": True, "workers": 1}))
    (record,) = loaded(tmp_path).records
    assert record.config["keep_freed_memory"] is True
    assert type(record.config["workers"]) is int


def test_the_processes_of_a_claim_are_kept_in_order(study: Study, tmp_path: Path) -> None:
    assert study.claim == ()
    winner = SPACE.baseline.replace(workers=2)
    processes = [
        ClaimProcess(
            winner,
            starts_as_written=number % 2 == 0,
            ratio=LogRatio(0.1 * number, 0.02),
            baseline=make_measurement(1000.0 + number),
            winner=None,
            rates=(1000.0, 1200.0),
            rounds=20,
            cost_s=12.5,
            is_of_search=number == 0,
        )
        for number in range(3)
    ]
    for process in processes:
        study.add_claim(process)
    assert loaded(tmp_path).claim == tuple(processes)


def test_rounds_are_kept_in_order_and_say_the_speeds_of_all_they_hold(
    study: Study, tmp_path: Path
) -> None:
    """Those of two processes count as such; speedups of records follow all rounds."""
    assert study.rounds == []
    assert study.speeds is None
    one, two = (SPACE.baseline.replace(workers=n) for n in (1, 2))
    for record in (make_record(SPACE.baseline), make_record(one, 1.1), make_record(two, 1.1)):
        tell(study, record)
    played = [
        PlayedRounds(process, configs, (tuple(map(partial(Played, 1.0), speeds)),) * 9)
        for process, configs, speeds in (
            (1, (SPACE.baseline, one), (1.0, 1.2)),
            (1, (SPACE.baseline, one, two), (0.5, 0.6, 0.75)),
            (3, (SPACE.baseline, two), (2.0, 3.0)),
        )
    ]
    for part in played:
        study.add_rounds(part)
    again = loaded(tmp_path)
    assert again.rounds == study.rounds == played
    for each in (study, again):
        speeds = [r.speedup.estimate for r in each.records if r.speedup is not None]
        assert speeds == pytest.approx([1.0, 1.2, 1.5], rel=0.01)
    again.add_rounds(played[0])
    assert loaded(tmp_path).rounds == [*played, played[0]]


def test_rehearsals_are_kept(study: Study, tmp_path: Path) -> None:
    crash = Rehearsal(None, Ending(Outcome.CRASHED, "KeyError: 3"))
    records = [
        RehearsalRecord(SPACE.baseline.replace(workers=n), crash, guilty={"workers": n})
        for n in (1, 2)
    ]
    for record in records:
        study.add_rehearsal(record)
    assert loaded(tmp_path).rehearsals == study.rehearsals == tuple(records)
    assert study.guilty == [{"workers": 1}, {"workers": 2}]


def test_a_taken_name_is_not_overwritten(study: Study, tmp_path: Path) -> None:
    with pytest.raises(optuna.exceptions.DuplicatedStudyError):
        stored(tmp_path)


def test_a_missing_run_is_named_with_how_to_start_one(study: Study, tmp_path: Path) -> None:
    with pytest.raises(RunDirectoryError, match=r"no record of a search in .*autotune search"):
        Study.load(storage_in(tmp_path), "other")


def test_a_run_whose_program_nobody_looked_at_is_refused(study: Study, tmp_path: Path) -> None:
    """Its profile has no word on losses, datasets or loops, which would read as all is well."""
    head: dict[str, Any] = study.optuna.user_attrs["head"]
    study.optuna.set_user_attr("head", {**head, "format": 2})
    with pytest.raises(RunDirectoryError, match=r"format 2, .*Start a new search"):
        Study.load(storage_in(tmp_path), "autotune")


def test_a_run_of_a_later_format_is_refused(study: Study, tmp_path: Path) -> None:
    head: dict[str, Any] = study.optuna.user_attrs["head"]
    study.optuna.set_user_attr("head", {**head, "format": 99, "news": 1})
    with pytest.raises(RunDirectoryError, match="format 99"):
        loaded(tmp_path)


def test_a_run_in_a_directory_with_spaces_and_quotes(tmp_path: Path) -> None:
    place = tmp_path / 'it\'s a "place" 100%'
    place.mkdir()
    tell(stored(place), make_record(SPACE.baseline))
    assert len(loaded(place).records) == 1
    assert (place / "study.db").is_file()


# --- what the sampler learns ----------------------------------------------------------------------


def test_a_measured_trial_is_worth_what_its_speedup_surely_is(study: Study) -> None:
    record = make_record(SPACE.baseline.replace(workers=2), 1.5)
    assert record.speedup is not None
    assert record.speedup.low < 1.5
    trial = tell(study, record)
    assert trial.state is TrialState.COMPLETE
    assert trial.value == pytest.approx(math.log(record.speedup.low))
    assert trial.params["workers"] == 2


@pytest.mark.parametrize("outcome", MEMORY_OUTCOMES)
def test_out_of_memory_is_an_infeasible_trial_and_no_bad_value(
    study: Study, outcome: Outcome
) -> None:
    record = make_record(SPACE.baseline.replace(batch_size=512), Ending(outcome, "no memory"))
    trial = tell(study, record)
    assert trial.state is TrialState.PRUNED
    assert max(trial.constraints.values()) > 0
    assert trial.value is None


@pytest.mark.parametrize("outcome", OTHER_ENDINGS)
def test_any_other_ending_is_a_failed_trial(study: Study, outcome: Outcome) -> None:
    trial = tell(study, make_record(SPACE.baseline, Ending(outcome, "it ended")))
    assert trial.state is TrialState.FAIL
    assert trial.value is None
    assert not trial.constraints


@pytest.mark.parametrize("outcome", [1.3, Ending(Outcome.OUT_OF_MEMORY, "no memory")])
def test_a_config_that_was_measured_before_is_recorded_once(
    study: Study, outcome: float | Ending
) -> None:
    record = make_record(SPACE.baseline.replace(workers=2), outcome)
    tell(study, record)
    again, _ = study.propose(SPACE, SPACE.baseline)
    study.tell(again, record, is_known=True)
    assert study.records == [record]
    assert all(trial.state.is_finished() for trial in trials(study))


def test_a_trial_that_was_asked_for_holds_that_very_config(study: Study) -> None:
    for config in list(SPACE.configs(SPACE.baseline))[:5]:
        trial = study.ask_for(config, SPACE)
        assert trial.params == {n: config[n] for n in SPACE.domains}
        study.tell(trial, make_record(config))


@pytest.mark.parametrize("flushes", [False, True])
def test_the_sampler_proposes_only_what_the_open_rig_can_run(study: Study, flushes: bool) -> None:
    at = SPACE.baseline.replace(flush_denormal=flushes)
    for _ in range(12):
        trial, config = study.propose(SPACE, at)
        assert config["flush_denormal"] is flushes
        assert trial.params["flush_denormal"] is flushes
        assert SPACE.canonical(config) == config
        study.tell(trial, make_record(config, 1.1))


def test_the_same_seed_proposes_the_same_configs(tmp_path: Path) -> None:
    def proposals(name: str, seed: int) -> list[Config]:
        place = tmp_path / name
        place.mkdir()
        head = make_head(SEARCH_SPACE, options=SearchOptions(90.0, seed=seed, sampler="tpe"))
        study = Study.create(storage_in(place), "autotune", head)
        found = []
        for _ in range(5):
            trial, config = study.propose(SPACE, SPACE.baseline)
            study.tell(trial, make_record(config, 1.0 + int(config["batch_size"]) / 1000))
            found.append(config)
        return found

    first = proposals("first", 3)
    assert proposals("again", 3) == first
    assert proposals("other", 4) != first


# --- one process at a time ------------------------------------------------------------------------


def test_a_living_lease_refuses_a_second_process_by_its_id(study: Study, tmp_path: Path) -> None:
    with other_process(tmp_path, "study.take_lease()") as other:
        with pytest.raises(RunDirectoryError) as refusal:
            study.take_lease()
        assert f"process {other.pid} on {socket.gethostname()}" in str(refusal.value)
        assert f"kill {other.pid}" in str(refusal.value)
        with pytest.raises(RunDirectoryError):
            study.take_lease(force=True)  # it can be seen to live


def test_a_holder_that_has_ended_and_was_not_waited_for_holds_nothing(study: Study) -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    holder = psutil.Process(ended.pid)
    started = holder.create_time()
    while holder.status() != psutil.STATUS_ZOMBIE:
        time.sleep(0.01)
    study.optuna.set_user_attr("lease", asdict(Lease(socket.gethostname(), ended.pid, started)))
    study.take_lease()
    ended.wait()


def test_a_holder_that_cannot_be_seen_gives_way_to_force(study: Study) -> None:
    study.optuna.set_user_attr("lease", asdict(Lease("a machine that is gone", 1, 0.0)))
    with pytest.raises(RunDirectoryError, match="--force"):
        study.take_lease()
    study.take_lease(force=True)


def test_a_second_process_leaves_the_running_trial_of_the_first_alone(
    study: Study, tmp_path: Path
) -> None:
    with other_process(tmp_path, "study.take_lease(); study.propose(SPACE, SPACE.baseline)"):
        with pytest.raises(RunDirectoryError):
            study.take_lease()
        assert [t.state for t in trials(study)] == [TrialState.RUNNING]


def test_a_killed_process_holds_no_lease_and_its_running_trial_has_failed(
    study: Study, tmp_path: Path
) -> None:
    killed(tmp_path, "study.take_lease(); study.propose(SPACE, SPACE.baseline)")
    assert [t.state for t in trials(study)] == [TrialState.RUNNING]
    study.take_lease()
    assert [t.state for t in trials(study)] == [TrialState.FAIL]
    assert study.records == []


def test_a_lease_that_was_given_back_holds_nobody(study: Study, tmp_path: Path) -> None:
    with other_process(tmp_path, "study.take_lease(); study.release_lease()"):
        study.take_lease()


def test_the_process_that_holds_the_lease_may_take_it_again(study: Study, tmp_path: Path) -> None:
    study.take_lease()
    loaded(tmp_path).take_lease()


def test_another_process_under_the_id_of_a_dead_one_holds_no_lease(study: Study) -> None:
    """Process ids are used again; the start time tells two processes apart."""
    own = psutil.Process()
    stale = {"host": socket.gethostname(), "pid": own.pid, "started": own.create_time() - 3600}
    study.optuna.set_user_attr("lease", stale)
    study.take_lease()
    assert study.optuna.user_attrs["lease"]["started"] == pytest.approx(own.create_time())


def test_a_lease_from_another_machine_is_believed(study: Study) -> None:
    """What runs elsewhere cannot be seen from here."""
    study.optuna.set_user_attr("lease", {"host": "elsewhere", "pid": 1, "started": 0.0})
    with pytest.raises(RunDirectoryError, match="process 1 on elsewhere"):
        study.take_lease()


def test_a_trial_that_was_enqueued_by_a_process_that_died_comes_up_for_nobody(
    study: Study, tmp_path: Path
) -> None:
    """Killed between enqueuing and asking, a process leaves a waiting trial of another config."""
    killed(
        tmp_path,
        "study.take_lease(); study.optuna.enqueue_trial({'workers': 2, 'batch_size': 512})",
    )
    study.take_lease()
    trial = study.ask_for(SPACE.baseline, SPACE)
    assert trial.params == {n: SPACE.baseline[n] for n in SPACE.domains}


def test_a_process_killed_between_recording_and_telling_loses_no_record(
    study: Study, tmp_path: Path
) -> None:
    work = (
        "from tests.made import make_record; "
        "study.take_lease(); trial, _ = study.propose(SPACE, SPACE.baseline); "
        "study.optuna.tell = lambda *a, **k: (print('done', flush=True), sys.stdin.read()); "
        "study.tell(trial, make_record(SPACE.baseline, 1.1))"
    )
    killed(tmp_path, work)
    study.take_lease()
    assert len(study.records) == 1
    assert all(t.state.is_finished() for t in trials(study))


def test_a_share_of_the_batch_that_is_not_offered_is_recorded_all_the_same(study: Study) -> None:
    """Ranks that keep the global batch have such batches."""
    own = int(SPACE.baseline["batch_size"])
    assert own // 2 not in SPACE.domains["batch_size"].values
    config = SPACE.baseline.replace(batch_size=own // 2)
    kept = tell(study, make_record(config, 1.2))
    assert "batch_size" not in kept.params
    assert "workers" in kept.params
    assert study.records[-1].config == config
