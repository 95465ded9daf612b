"""Programs run with short epochs: what they do between two epochs and at their end is met."""

from __future__ import annotations

import multiprocessing
import runpy
import sys
from collections.abc import Iterator
from pathlib import Path
from time import perf_counter

import pytest

from autotune.inside.short_epochs import ShortEpochs
from autotune.measurement.outcome import Ending, Outcome
from autotune.program.applied_config import AppliedConfig
from autotune.program.config import Config, KnobValue
from autotune.program.rehearsal import Rehearsal, RehearsalPlan, Seen
from tests.made import make_applied, make_loader
from tests.rigging import PROGRAMS

BASE: dict[str, KnobValue] = {
    "batch_size": 16,
    "precision": "fp32",
    "memory_format": "contiguous",
    "workers": 0,
    "accumulation_steps": 1,
}
PLAN = RehearsalPlan(enough_s=0.0)
LOADER = make_loader(dataset_len=1024, batch_size=16)


class OverError(Exception):
    """In place of the end of the process."""


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    yield
    for worker in multiprocessing.active_children():  # a rig ends them with itself
        worker.terminate()
        worker.join()


def applied_of(**changes: KnobValue) -> AppliedConfig:
    return make_applied({**BASE, **changes}, baseline=Config(BASE), loader=LOADER)


def rehearsed(role: str, **changes: KnobValue) -> Rehearsal:
    """Run the program of this name with short epochs, under some knobs."""
    return run("rehearses.py", role, PLAN, applied_of(**changes))


def run(program: str, role: str, plan: RehearsalPlan, applied: AppliedConfig) -> Rehearsal:
    """Run a program with short epochs in this process."""
    told: list[Seen] = []

    def over(seen: Seen) -> None:
        told.append(seen)
        if seen.ended == "as planned":
            raise OverError

    listener = ShortEpochs(applied, plan, over, perf_counter())
    argv, sys.argv = sys.argv, [program, *role.split()]
    ending = None
    try:
        listener.steering.apply(applied)
        listener.seams.install()
        runpy.run_path(str(PROGRAMS / program), run_name="__main__")
        listener.program_ended()
    except OverError:
        pass
    except (AssertionError, RuntimeError, TypeError) as error:
        listener.program_ended()
        ending = Ending(Outcome.CRASHED, f"{type(error).__name__}: {error}")
    finally:
        sys.argv = argv
        listener._report.timer.cancel()
        listener._report.timer.join()
        listener.seams.remove()
    return Rehearsal(told[0] if told else None, ending)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"precision": "bf16"},
        {"memory_format": "channels_last"},
        {"batch_size": 64},
        {"workers": 1},
        {"accumulation_steps": 4},
        {"accumulation_steps": 16},  # gathered for long, they make a step before an epoch is cut
    ],
    ids=str,
)
def test_two_epochs_with_evaluation_and_saving_are_seen_under_every_knob(
    changes: dict[str, KnobValue],
) -> None:
    found = rehearsed("plain", **changes)
    assert found.has_passed, found
    assert found.seen is not None
    assert (found.seen.epochs, found.seen.evaluations, found.seen.ended) == (2, 2, "as planned")
    assert found.seen.steps >= 2


@pytest.mark.parametrize(
    ("role", "changes", "said"),
    [
        ("numpy", {"precision": "bf16"}, "TypeError"),
        ("flat", {"memory_format": "channels_last"}, "RuntimeError: view size"),
        ("buffer", {"batch_size": 64}, "RuntimeError: The expanded size"),
        ("checkpoint", {"memory_format": "channels_last"}, "RuntimeError: view size"),
    ],
)
def test_what_fails_after_an_epoch_under_a_knob_alone_is_seen(
    role: str, changes: dict[str, KnobValue], said: str
) -> None:
    written, under = rehearsed(role), rehearsed(role, **changes)
    assert written.has_passed, written
    assert under.ending is not None, under
    assert said in under.ending.reason


LONG = RehearsalPlan(enough_s=60.0)


@pytest.mark.parametrize(
    ("program", "plan", "epochs", "ended", "least", "most"),
    [
        ("rehearses.py three", LONG, 3, "by itself", 3, 200),
        ("rehearses.py three", RehearsalPlan(most_s=0.0), 0, "out of time", 0, 200),
        ("rehearses.py cycle", PLAN, 1, "as planned", 1, 99),  # a loop that keeps its batches
        ("no_loader.py 8000", PLAN, 0, "as planned", 1, 1),
        ("by_hand.py losses 3", LONG, 3, "by itself", 3, 200),
    ],
)
def test_a_program_is_seen_to_its_own_end_or_is_left_after_a_while(
    program: str, plan: RehearsalPlan, epochs: int, ended: str, least: int, most: int
) -> None:
    name, _, role = program.partition(" ")
    found = run(name, role, plan, applied_of())
    assert found.seen is not None
    assert (found.seen.epochs, found.seen.ended) == (epochs, ended)
    assert least <= found.seen.steps <= most
    assert found.has_passed is (ended != "out of time")
