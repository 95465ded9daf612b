"""The study: all that a run knows, in one Optuna storage, whole after any death."""

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

import psutil
import pytest
from optuna.samplers import RandomSampler
from optuna.trial import FrozenTrial, TrialState

from autotune.errors import RecordError, RunDirectoryError
from autotune.files.lease import Lease
from autotune.measurement.outcome import Ending, Outcome
from autotune.measurement.readings import Memory
from autotune.measurement.turn import Played
from autotune.program.config import Config
from autotune.results.record import (
    BaselineInfo,
    PlayedRounds,
    SearchOptions,
    TrialRecord,
)
from autotune.tuning.choosing.sampler import Sampler, make_sampler
from autotune.tuning.storage.study import Study
from tests.made import (
    GIB,
    make_hardware,
    make_head,
    make_loader,
    make_measurement,
    make_profile,
    make_record,
    make_space,
    make_study,
    storage_in,
)

SEARCH_SPACE = make_space(["workers", "prefetch_factor", "batch_size", "flush_denormal"])
SPACE = SEARCH_SPACE.resolve(make_hardware(), make_profile())
ROOT = Path(__file__).parents[3]
MEMORY_OUTCOMES = (Outcome.OUT_OF_MEMORY, Outcome.HOST_OUT_OF_MEMORY, Outcome.SHARED_MEMORY)

# Another process that opens the run, does something, says so, and waits for its end.
OTHER_PROCESS = """
import sys
from pathlib import Path
from autotune.tuning.storage.study import Study
from optuna.samplers import RandomSampler
from tests.made import storage_in
from tests.tuning.storage.test_study import SPACE
study = Study.load(storage_in(Path(sys.argv[1])), "autotune")
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
    study.tell(record, SPACE)
    return trials(study)[-1]


@contextmanager
def other_process(directory: Path, work: str) -> Iterator[subprocess.Popen[str]]:
    """Run *work* in a living process, which ends with the block."""
    process = subprocess.Popen(
        [sys.executable, "-c", OTHER_PROCESS.format(work=work), directory],
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


def test_facts_and_spent_time_are_none_until_written(study: Study, tmp_path: Path) -> None:
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
    measurement = make_measurement(samples_per_epoch=60_000, memory=memory)
    full = replace(make_record(SPACE.baseline.replace(workers=2), 1.25), measurement=measurement)
    traceback = 'Traceback …\n  File "größe.py", line 1\nValueError: \x00\n'
    ending = Ending(Outcome.OUT_OF_MEMORY, "because of its size", traceback)
    ended = make_record(SPACE.baseline.replace(batch_size=128), ending)
    unmeasured = replace(ended, rig=None, config=Config(SPACE.baseline))
    records = [measured, full, ended, unmeasured]
    for record in records:
        tell(study, record)
    again = loaded(tmp_path).records
    assert again == records
    assert [r.outcome for r in again][1:3] == [Outcome.OK, Outcome.OUT_OF_MEMORY]


def test_rounds_are_kept_in_order_and_say_all_speeds(study: Study, tmp_path: Path) -> None:
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
    assert played[0].stretch is played[0].stretch, "summed up once, however often speeds are asked"
    again.add_rounds(played[0])
    assert loaded(tmp_path).rounds == [*played, played[0]]
    whole: dict[str, Any] = study.optuna.user_attrs["rounds:00000"]
    absurdities: list[dict[str, Any]] = [
        {"rounds": []},
        {"configs": []},
        {"rounds": [[], whole["rounds"][0]]},
    ]
    for absurd in absurdities:
        study.keep("rounds:00000", {**whole, **absurd})
        with pytest.raises(RecordError, match="damaged"):
            loaded(tmp_path)


def test_a_run_of_a_later_format_is_refused(study: Study, tmp_path: Path) -> None:
    head: dict[str, Any] = study.optuna.user_attrs["head"]
    study.optuna.set_user_attr("head", {**head, "format": 99, "news": 1})
    with pytest.raises(RunDirectoryError, match="format 99"):
        loaded(tmp_path)


# --- what the sampler learns ----------------------------------------------------------------------


def test_a_measured_trial_is_worth_what_its_speedup_surely_is(study: Study) -> None:
    record = make_record(SPACE.baseline.replace(workers=2), 1.5)
    assert record.speedup is not None
    assert record.speedup.low < 1.5
    trial = tell(study, record)
    assert trial.state is TrialState.COMPLETE
    assert trial.value == pytest.approx(math.log(record.speedup.low))
    assert trial.params["workers"] == 2


def test_out_of_memory_is_infeasible_and_any_other_ending_has_failed(study: Study) -> None:
    for outcome in (outcome for outcome in Outcome if outcome is not Outcome.OK):
        record = make_record(SPACE.baseline.replace(batch_size=512), Ending(outcome, "it ended"))
        trial = tell(study, record)
        is_memory = outcome in MEMORY_OUTCOMES
        assert trial.state is (TrialState.PRUNED if is_memory else TrialState.FAIL), outcome
        assert bool(trial.constraints) is is_memory
        assert trial.value is None


@pytest.mark.parametrize("outcome", [1.3, Ending(Outcome.OUT_OF_MEMORY, "no memory")])
def test_a_config_measured_twice_is_recorded_once(study: Study, outcome: float | Ending) -> None:
    record = make_record(SPACE.baseline.replace(workers=2), outcome)
    tell(study, record)
    again, _ = study.propose(SPACE, SPACE.baseline, RandomSampler(0))
    study.tell(record, SPACE, again, is_known=True)
    assert study.records == [record]
    assert all(trial.state.is_finished() for trial in trials(study))


@pytest.mark.parametrize("flushes", [False, True])
def test_the_sampler_proposes_only_what_the_open_rig_can_run(tmp_path: Path, flushes: bool) -> None:
    study = make_study(tmp_path, SEARCH_SPACE)
    at = SPACE.baseline.replace(flush_denormal=flushes)
    for _ in range(12):
        trial, config = study.propose(SPACE, at, RandomSampler(0))
        assert config["flush_denormal"] is flushes
        assert trial.params["flush_denormal"] is flushes
        assert SPACE.canonical(config) == config
        study.tell(make_record(config, 1.1), SPACE, trial)


def test_the_same_seed_proposes_the_same_configs(tmp_path: Path) -> None:
    def proposals(name: str, seed: int) -> list[Config]:
        study = make_study(tmp_path / name, SEARCH_SPACE)
        sampler, found = make_sampler(Sampler.TPE, seed), list[Config]()
        assert sampler is not None
        for _ in range(5):
            trial, config = study.propose(SPACE, SPACE.baseline, sampler)
            record = make_record(config, 1.0 + int(config["batch_size"]) / 1000)
            study.tell(record, SPACE, trial)
            found.append(config)
        return found

    first = proposals("first", 3)
    assert proposals("again", 3) == first
    assert proposals("other", 4) != first


# --- one process at a time ------------------------------------------------------------------------


def hold(study: Study, **other: Any) -> None:
    """Let another process than this hold the study."""
    study.keep("lease", asdict(replace(Lease.of_this_process(), **other)))


def test_a_holder_that_is_a_zombie_or_has_the_number_of_another_holds_nothing(study: Study) -> None:
    with subprocess.Popen([sys.executable, "-c", ""]) as ended:
        while (process := psutil.Process(ended.pid)).status() != psutil.STATUS_ZOMBIE:
            time.sleep(0.01)
        stat = Path(f"/proc/{ended.pid}/stat").read_text()
        for pid, since in ((ended.pid, int(stat.split()[21])), (process.ppid(), 1), (2**22 + 1, 1)):
            hold(study, pid=pid, started_ticks=since)
            study.take_lease()


@pytest.mark.parametrize(
    "gone",
    [
        {"host": "a machine that is gone", "boot": "another", "pid": 1},
        {"container": "pid:[1]", "pid": 1},
    ],
)
def test_a_holder_that_cannot_be_seen_gives_way_to_force(study: Study, gone: Any) -> None:
    hold(study, **gone)
    with pytest.raises(RunDirectoryError, match="--force"):
        study.take_lease()
    study.take_lease(force=True)


def test_a_machine_that_started_anew_holds_nothing(study: Study) -> None:
    hold(study, boot="the one before", pid=os.getppid())
    study.take_lease()
    mine = study.optuna.user_attrs["lease"]
    hold(study, host="that took it over", boot="another")
    study.release_lease()
    assert study.optuna.user_attrs["lease"]["host"] == "that took it over"
    study.take_lease(force=True)
    assert study.optuna.user_attrs["lease"] == mine
    study.release_lease()
    assert study.optuna.user_attrs["lease"] is None


def test_a_lease_that_another_process_takes_between_a_look_and_a_write_is_its(
    study: Study, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other, check, pid = loaded(tmp_path), Lease.check, os.getppid()
    began = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])

    def check_slowly(self: Lease, held: Lease | None, *, force: bool) -> None:
        check(self, held, force=force)
        hold(other, pid=pid, started_ticks=began)

    monkeypatch.setattr(Lease, "check", check_slowly)
    monkeypatch.setattr(time, "time", lambda: 0.0)  # whatever the clock says
    for force in (False, True):
        with pytest.raises(RunDirectoryError) as refusal:
            study.take_lease(force=force)  # it can be seen to live
        assert str(refusal.value) == (
            f"Another autotune (process {pid} on {socket.gethostname()}) works on this run. "
            f"Wait for it, or end it: kill {pid}"
        )
        assert study.optuna.user_attrs["lease"]["pid"] == pid


def test_a_killed_process_holds_no_lease_and_no_trial_and_loses_no_record(
    study: Study, tmp_path: Path
) -> None:
    """It left one trial open, and was killed between the record of another and its end."""
    work = (
        "from tests.made import make_record; study.take_lease(); "
        "trial, _ = [study.propose(SPACE, SPACE.baseline, RandomSampler(0)) for _ in range(2)][1]; "
        "study.optuna.tell = lambda *a, **k: (print('done', flush=True), sys.stdin.read()); "
        "study.tell(make_record(SPACE.baseline, 1.1), SPACE, trial)"
    )
    killed(tmp_path, work)
    assert [t.state for t in trials(study)] == [TrialState.RUNNING] * 2
    study.take_lease()
    assert [t.state for t in trials(study)] == [TrialState.FAIL] * 2
    assert len(study.records) == 1
