"""The likeliest first screen: a program that did not start, failed, or was refused."""

from dataclasses import replace
from pathlib import Path

import pytest
import typer

from autotune.cli.failure_screen import MOST_LINES, WIDTH, last_lines, lines_of
from autotune.cli.messages import Messages, errors_told
from autotune.errors import BudgetError, NothingMeasured, ProgramError, UnmeasuredError
from autotune.measurement.outcome import Cause, Ending, Outcome
from autotune.rig.failures import MENDS, UNSEEN, program_error
from autotune.rig.wire import Progress
from autotune.tuning.start.start_up_time import StartUp, unmeasured
from tests.made import PROGRAM

SITE = "/usr/lib/python3/site-packages/torch/nn/modules"
FRAMES = "".join(
    f'  File "{SITE}/m{n}.py", line {n}, in forward\n    call({n})\n' for n in range(30)
)
TRACEBACK = (
    "Traceback (most recent call last):\n"
    '  File "/home/ann/train.py", line 90, in <module>\n    main()\n    ~~~~^^\n'
    '  File "/home/ann/models/net.py", line 12, in forward\n    return self.fc(x)\n'
    f"{FRAMES}RuntimeError: mat1 and mat2 shapes cannot be multiplied (3x8 and 4x2)\n"
)
CRASH = Ending(Outcome.CRASHED, "RuntimeError: mat1 and mat2 cannot be multiplied", TRACEBACK)
BY_ITSELF = replace(CRASH, cause=Cause.PROGRAM, evidence="it ended in the same way")
MISSING = Ending(Outcome.CRASHED, "ModuleNotFoundError: No module named 'mamba'", TRACEBACK)
RAN_OUT = Ending(Outcome.RAN_OUT, "the program ended after 0 steps", "evaluating\naccuracy: 0.9")
# What ended it, and what must be read: whether it fails alone, what to do, and to type
CASES = {
    "by itself": (BY_ITSELF, ("without autotune", "same way", "train.py")),
    "under autotune alone": (
        replace(CRASH, cause=Cause.AUTOTUNE, evidence="it ran to its end"),
        ("without autotune", "it ran to its end", "autotune doctor --report"),
    ),
    "unclear": (
        replace(CRASH, cause=Cause.UNCLEAR, evidence="there was no time to start it"),
        ("without autotune", "there was no time", "Run it once without autotune"),
    ),
    "a missing module": (
        replace(MISSING, cause=Cause.PROGRAM, evidence="it ended in the same way"),
        ("No module named 'mamba'", "belong to the program's environment?"),
    ),
    "refused by name": (
        Ending(Outcome.CRASHED, MENDS["ForkTrainingError"]),
        ("cannot be searched", "torch.multiprocessing.spawn()"),
    ),
    "no step": (RAN_OUT, ("nothing to measure", "accuracy: 0.9", "Is this the training script?")),
    "no step of an optimizer": (
        replace(RAN_OUT, reason=f"it trains, but {UNSEEN} otherwise"),
        ("nothing to measure", "torch.optim"),
    ),
    "too large": (
        Ending(Outcome.OUT_OF_MEMORY, "the device ran out of memory", TRACEBACK),
        ("does not fit", "smaller first"),
    ),
    "hangs": (Ending(Outcome.HUNG, "no step for 60 s", "epoch 1"), ("hangs", "epoch 1")),
    "asks": (
        replace(CRASH, reason='it asks for input ("Go on?")', cause=Cause.INPUT),
        ("cannot be measured", "Nobody can type in a trial"),
    ),
    "wants a launcher": (
        replace(CRASH, reason="KeyError: 'RANK'"),
        ("launcher", "autotune search --nproc-per-node 2"),
    ),
    "fenced off": (
        replace(CRASH, reason="OSError: [Errno 30] Read-only file system: '/data'"),
        ("when it wrote a file", "--fence landlock"),
    ),
}


@pytest.mark.parametrize(("ending", "said"), CASES.values(), ids=CASES)
def test_each_way_to_fail_is_told_in_15_lines_of_80_columns_with_what_to_do(
    ending: Ending, said: tuple[str, ...]
) -> None:
    lines = lines_of(program_error(PROGRAM, ending))
    text = " ".join(" ".join(lines).split())
    assert len(lines) <= MOST_LINES, lines
    assert all(len(line) <= WIDTH for line in lines), lines
    for words in said:
        assert " ".join(words.split()) in text
    assert any(line.startswith("  next ") for line in lines)


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ((), ("made no step", "All that it printed:", "log.txt")),
        ((Progress("start-up", 1, 30.0),), ("too short", "autotune search --budget ")),
    ],
)
def test_a_budget_that_ends_before_anything_was_measured_shows_what_was_printed_last(
    tmp_path: Path, steps: tuple[Progress, ...], said: tuple[str, ...]
) -> None:
    log, seen = tmp_path / "log.txt", StartUp()
    log.write_text("".join(f"preparing {n} %\n" for n in range(99)))
    for progress in steps:
        seen.hear(progress)
    lines = lines_of(unmeasured(PROGRAM, 60.0, seen, log))
    assert len(lines) <= MOST_LINES
    assert "  preparing 98 %" in lines
    text = " ".join(" ".join(lines).split())
    assert all(words in text for words in said)


def test_of_a_traceback_the_frames_of_the_program_and_the_message_stay() -> None:
    said = last_lines(TRACEBACK, 10)
    assert [line.split(",")[0].split("/")[-1] for line in said if "File" in line] == [
        'train.py"', 'net.py"',
    ]  # fmt: skip
    assert said[-1].startswith("RuntimeError: mat1")
    assert not any("~~^^" in line for line in said)
    assert len(last_lines(f"{FRAMES}ValueError: no", 6)) <= 6
    assert last_lines(f"{FRAMES}ValueError: no", 6)[-1] == "ValueError: no"
    assert last_lines("a\n\nb\x1b[2J\nc", 2) == [r"b\x1b[2J", "c"]
    assert last_lines("", 10) == []


def test_the_text_of_the_error_has_all_that_the_screen_shows() -> None:
    error = program_error(PROGRAM, BY_ITSELF)
    assert str(error).splitlines() == [
        error.headline,
        "Without autotune it ended in the same way.",
        f"  {error.command}",
    ]
    named = error.of("HEAD~1")
    assert str(named) == f"HEAD~1: {error}"
    assert type(BudgetError("no time").of("one")) is BudgetError


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ProgramError("it fails", "Traceback\nlast words"), 2),
        (BudgetError("no time"), 2),
        (NothingMeasured("stopped"), 130),
    ],
)
def test_the_screen_is_on_stderr_and_the_status_is_that_of_the_error(
    error: UnmeasuredError, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(typer.Exit) as ended, errors_told(Messages()):
        raise error
    assert ended.value.exit_code == status
    seen = capsys.readouterr()
    assert not seen.out
    assert seen.err.startswith(f"autotune: {error.headline}\n")
    assert ("  last words\n" in seen.err) == bool(error.program_traceback)
