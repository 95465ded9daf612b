"""What follows a training loop decides with: who is blamed, for what, and what is taken instead."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Self, cast
from unittest.mock import ANY

import pytest
import typer

from autotune.cli import search as command
from autotune.cli.console import Console
from autotune.measurement.outcome import Ending, Outcome, RunMode
from autotune.program.applied_config import AppliedConfig
from autotune.program.config import Config
from autotune.program.rehearsal import Rehearsal, RehearsalPlan, Seen
from autotune.results.finding import Finding
from autotune.results.output import Output
from autotune.results.rehearsals import RehearsalRecord, note, warning
from autotune.results.result import SearchResult
from autotune.rig.open_rig import SILENT, Reports
from autotune.rig.rig_factory import RigFactory
from autotune.tuning.checking.rehearse import rehearse_best
from autotune.tuning.checking.short_runs import SILENT_S
from autotune.tuning.choosing.ranking import promising
from autotune.tuning.claiming.claim import ClaimResult
from autotune.tuning.conclude import conclude
from autotune.tuning.storage.study import Study
from tests.made import make_applied, make_loader, make_record, memory_of
from tests.rigging import never, rig_on
from tests.scripted import VirtualClock
from tests.tuning.test_session import BASE, OTHER, RESOLVED, Made, baseline, made, tell
from tests.tuning.watched import told

pytestmark = pytest.mark.usefixtures("warm_starts")

PASSED = Rehearsal(Seen(6, 2, 1, "as planned"))
TRACE = (
    'File "/home/user/train.py", line {}, in evaluate\n  File "/x/site-packages/torch/a.py", line 1'
)


def failed(said: str, line: int = 40, steps: int = 3) -> Rehearsal:
    ending = Ending(Outcome.CRASHED, said, TRACE.format(line))
    return Rehearsal(Seen(steps, 1, 1, "by itself"), ending)


BF16 = failed("TypeError: Got unsupported ScalarType BFloat16")
FASTER = RESOLVED.canonical(BASE.replace(workers=2))
APART = RESOLVED.canonical(BASE.replace(workers=1, flush_denormal=True))


@dataclass
class RehearsalRig:
    """A rig whose rehearsals come out as they are told, and take so long."""

    stage: Stage

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def rehearse(self, applied: AppliedConfig, plan: RehearsalPlan, _give_up: object) -> Rehearsal:
        self.stage.clock.now_s += self.stage.takes_s
        self.stage.given_s.append(plan.most_s)
        self.stage.asked.append(applied.config)
        once = self.stage.once.pop(applied.config, None)
        return once or self.stage.outcomes.get(applied.config, PASSED)


@dataclass
class Stage:
    """Makes such rigs, and notes what they were asked."""

    clock: VirtualClock
    outcomes: dict[Config, Rehearsal]
    once: dict[Config, Rehearsal] = field(default_factory=dict)
    takes_s: float = 8.0
    asked: list[Config] = field(default_factory=list)
    given_s: list[float] = field(default_factory=list)
    started: int = 0
    mode: RunMode = field(default_factory=RunMode)
    reports: Reports = SILENT

    def new(self) -> RehearsalRig:
        self.started += 1
        return RehearsalRig(self)


def rehearsed(
    folder: Path,
    outcomes: dict[Config, Rehearsal],
    *,
    total_s: float = 300.0,
    spent_s: float = 60.0,
    speedups: dict[Config, float] | None = None,
    once: dict[Config, Rehearsal] | None = None,
) -> tuple[Made, Stage]:
    """Rehearse the best of a search that is over."""
    given = made(folder, total_s, spent_s)
    stage = Stage(given.clock, outcomes, once or {})
    given.session.rigs = cast("RigFactory", stage)
    tell(given.study, make_record(BASE))
    for config, speedup in (speedups or {OTHER: 1.5}).items():
        tell(given.study, make_record(config, speedup))
    rehearse_best(given.session, baseline())
    return given, stage


def concluded(given: Made) -> SearchResult:
    verdict = ClaimResult(next(iter(promising(given.study, RESOLVED)), None))
    return conclude(given.session, baseline(), verdict)


def test_a_config_that_comes_through_is_rehearsed_once_and_alone(tmp_path: Path) -> None:
    given, stage = rehearsed(tmp_path, {})
    assert stage.asked == [OTHER]
    rehearse_best(given.session, baseline())
    assert stage.asked == [OTHER], "a resumed search does not do it again"
    (record,) = Study.load(memory_of(tmp_path), "autotune").rehearsals
    assert (record.config, record.own, record.is_blamed, record.cost_s) == (OTHER, PASSED, False, 8)
    assert promising(given.study, RESOLVED)[0].config == OTHER


def test_what_fails_under_the_winner_alone_is_not_recommended_and_the_next_best_is_taken(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given, stage = rehearsed(tmp_path, {FASTER: BF16}, speedups={OTHER: 1.3, FASTER: 1.5})
    assert stage.asked == [FASTER, BASE, OTHER]
    assert [r.config for r in promising(given.study, RESOLVED)] == [OTHER]
    text = told(concluded(given), capsys)
    assert "Not recommended: workers=2 fails outside of the training loop: TypeError" in text


def test_an_error_of_a_gpu_is_the_winners_fault_where_another_process_repeats_it(
    tmp_path: Path,
) -> None:
    hit = failed("RuntimeError: CUDA error: an illegal memory access was encountered")
    for name, outcomes, once in (("once", {}, {OTHER: hit}), ("always", {OTHER: hit}, {})):
        given, stage = rehearsed(tmp_path / name, outcomes, once=once)
        assert stage.asked == [OTHER, OTHER, *([BASE] if outcomes else [])]
        assert bool(promising(given.study, RESOLVED)) is not bool(outcomes)


@pytest.mark.parametrize(
    ("written", "is_blamed"),
    [
        (failed("TypeError: Got unsupported ScalarType something else"), False),
        (failed("AssertionError: 3 batches of 64", line=60), True),
        (failed("AssertionError: 3 batches of 64", line=20, steps=2), False),
        (Rehearsal(Seen(9, 2, 2, "out of time")), True),
        (Rehearsal(Seen(3, 1, 1, "out of time")), False),
        (Rehearsal(None, Ending(Outcome.OUT_OF_TIME, "")), False),
    ],
    ids=["alike", "later", "sooner", "slow but further", "slow", "without a word"],
)
def test_a_config_is_blamed_only_for_what_the_baseline_survives(
    tmp_path: Path, written: Rehearsal, is_blamed: bool
) -> None:
    given, stage = rehearsed(tmp_path, {OTHER: BF16, BASE: written})
    (record,) = given.study.rehearsals
    assert record.is_blamed is is_blamed
    assert bool(promising(given.study, RESOLVED)) is not is_blamed
    assert stage.asked[:2] == [OTHER, BASE]


def test_nothing_could_be_measured_is_said_with_the_most_common_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    given = made(tmp_path, 300.0, 60.0)
    tell(given.study, make_record(BASE))
    for said, config in (("KeyError: 3", OTHER), ("OSError: x", FASTER), ("KeyError: 3", APART)):
        ending = Ending(Outcome.CRASHED, said)
        tell(given.study, replace(make_record(config), measurement=None, ending=ending))
    result = conclude(given.session, baseline(), ClaimResult(None))
    assert (result.finding, result.best) == (Finding.NOT_MEASURED, BASE)
    assert result.reason == "2 of 3 configs failed: KeyError: 3"
    console = Console()

    def found() -> SearchResult:
        console.on_result(result)
        return result

    with pytest.raises(typer.Exit) as caught:
        command._end(console, found, Output.typed("best.yaml"), as_json=False)
    assert caught.value.exit_code == 3
    text = capsys.readouterr().out
    assert "Only the program as written could be measured" in text
    assert "because         2 of 3 configs failed: KeyError: 3" in text
    assert "autotune resume" not in text, "more time helps no config that fails"


def test_the_knob_is_blamed_without_which_the_config_comes_through(tmp_path: Path) -> None:
    both, alone = OTHER.replace(precision="bf16"), BASE.replace(precision="bf16")
    fails = {both: BF16, alone: BF16}
    given, stage = rehearsed(tmp_path, fails, speedups={both: 1.5, OTHER: 1.4})
    assert stage.asked == [both, BASE, alone, OTHER, OTHER]
    assert given.study.rehearsals[0].guilty == {"precision": "bf16"}
    assert promising(given.study, RESOLVED)[0].config == OTHER


def test_a_config_that_stands_still_in_a_short_rehearsal_is_noticed(tmp_path: Path) -> None:
    """As a forked process that waits for threads which the fork did not copy."""
    most_s = 1.0
    cases = ((0.0, False, False), (0.3, False, False), (0.7, True, False), (0.7, False, True))
    for share, has_failed, is_at_work in cases:
        folder = tmp_path / f"{share} {is_at_work}"
        folder.mkdir()
        seen = Seen(3, 1, 0, "out of time", silent_s=share * most_s, is_at_work=is_at_work)
        given, stage = rehearsed(folder, {OTHER: Rehearsal(seen)}, total_s=176.0, spent_s=120.0)
        most_s = stage.given_s[0]
        assert 0.7 * most_s < SILENT_S, "too short to stand still for the usual time"
        record = given.study.rehearsals[0]
        assert record.own.has_failed is has_failed, share


def test_what_was_not_rehearsed_is_recommended_with_a_doubt() -> None:
    passed = RehearsalRecord(OTHER, PASSED)
    assert "there was no time" in warning([], OTHER)
    assert warning([passed], OTHER) == ""
    assert note([passed], OTHER) == (
        "With short epochs, the program showed no error under this config: 2 short epochs, "
        "1 evaluation."
    )
    failed = replace(passed, own=Rehearsal(None, Ending(Outcome.CRASHED, "KeyError: 3")))
    assert "no time to see whether it also fails as written" in warning([failed], OTHER)


def test_one_that_time_ended_is_done_again_when_a_resumed_search_has_more(tmp_path: Path) -> None:
    cut = Rehearsal(Seen(3, 1, 0, "out of time"))
    given, stage = rehearsed(tmp_path, {OTHER: cut}, total_s=110.0)
    assert stage.asked == [OTHER]
    rehearse_best(given.session, baseline())
    assert stage.asked == [OTHER]
    given.session.budget.total_s = 300.0
    stage.outcomes.clear()
    rehearse_best(given.session, baseline())
    assert stage.asked == [OTHER, OTHER]
    assert warning(given.study.rehearsals, OTHER) == ""


def test_a_rig_tells_what_fails_after_an_epoch_and_what_came_before(tmp_path: Path) -> None:
    written = Config({"batch_size": 16, "precision": "fp32"})
    loader = make_loader(dataset_len=1024, batch_size=16)
    applied = make_applied(written.replace(precision="bf16"), baseline=written, loader=loader)
    with rig_on(tmp_path, "rehearses.py", "numpy") as rig:
        found = rig.rehearse(applied, RehearsalPlan(most_s=120.0), never)
    assert found.seen == Seen(3, 1, 1, "by itself", silent_s=ANY)
    assert found.ending is not None
    assert found.ending.reason == "TypeError: Got unsupported ScalarType BFloat16"
    assert "in evaluate" in found.ending.program_traceback
    assert not (tmp_path / "model.pt").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("script", "library"),
    [("lightning_trainer.py", "lightning"), ("hf_trainer.py", "transformers")],
)
def test_a_trainer_evaluates_after_short_epochs_and_comes_to_its_end(
    script: str, library: str, tmp_path: Path
) -> None:
    applied = make_applied({"batch_size": 64}, loader=None, trainer=library)
    with rig_on(tmp_path, script, str(tmp_path / "out")) as rig:
        found = rig.rehearse(applied, RehearsalPlan(most_s=120.0), never)
        assert "ended after 6 steps" in rig.log_tail()
    assert found.has_passed
    assert str(found.seen) == "2 short epochs, 2 evaluations, to the program's own end"
