"""What a user reads of a whole search: the console on stderr, the report on stdout.

The search runs on the scripted machine, so each line can be compared with what is true.
"""

import io
import re
from pathlib import Path

import pytest
import typer

from autotune.cli import search_report
from autotune.cli.console import Console
from autotune.cli.messages import Messages, errors_told
from autotune.cli.stdout import results_console
from autotune.errors import ProgramError
from autotune.measurement.outcome import Ending, Outcome
from autotune.program.config import Config
from autotune.program.program import parse_program
from autotune.results.finding import Finding
from autotune.results.result import SearchResult
from autotune.results.wording import bounds, factor
from autotune.rig.failures import program_error
from tests.exports.stored import KNOBS
from tests.scripted import Question, Script, begin


def searched(folder: Path, script: Script, budget_s: float = 300.0, seed: int = 0) -> SearchResult:
    console = Console()
    try:
        return begin(folder, script, KNOBS, seed).go_on(budget_s, console)
    finally:
        console.end()


def test_what_a_file_of_somebody_elses_says_does_not_steer_the_terminal(
    capsys: pytest.CaptureFixture[str],
) -> None:
    messages, said = Messages(), "sets [A]=\x1b[2J\x9b1m ä\nand more"
    messages.warn(said)
    messages.error(said)
    messages.unmeasured(ProgramError("it failed", said, alone=said, mend=said))
    err = capsys.readouterr().err
    assert err.count(r"sets [A]=\x1b[2J\x9b1m ä") == 5
    assert err.count("and more") == 5
    assert not {"\x1b", "\x9b"} & {*err}


def test_a_claim_is_printed_with_its_interval_the_change_and_how_to_use_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = searched(tmp_path, Script({"workers": {1: 1.5}}))
    assert result.finding is Finding.FASTER
    capsys.readouterr()
    search_report.show(result, Path("best.yaml"))
    said = capsys.readouterr().out
    low, high = bounds(result.speedup)
    assert f"{factor(result.speedup)} faster" in said
    assert f"(95 % between {low} and {high})" in said
    assert re.search(r"workers +0 → 1\n", said), "its gain is the claim"
    assert "autotune run best.yaml" in said


def test_where_nothing_is_faster_or_all_fails_the_report_says_why_and_names_no_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def ends(question: Question) -> Ending | None:
        config = question.config or Config({})
        as_written = config.items() <= {"workers": 0, "batch_size": 64, "precision": "fp32"}.items()
        return None if as_written else Ending(Outcome.OUT_OF_MEMORY, "the GPU's memory is full")

    slower = Script(
        {"workers": {1: 0.7, 2: 0.6}, "precision": {"bf16": 0.7}, "batch_size": {128: 0.8}}
    )
    for script, words in (
        (
            slower,
            ("No faster settings found; nothing was changed", "not faster than as written"),
        ),
        (Script(ends=ends), ("Only the program as written", "the GPU's memory is full")),
    ):
        result = searched(tmp_path / words[0], script, 150.0)
        assert (result.finding is Finding.NOTHING_FOUND) is (script is slower)
        assert (result.finding is Finding.NOT_MEASURED) is (script is not slower)
        capsys.readouterr()
        search_report.show(result, Path("best.yaml"))
        said = capsys.readouterr().out
        assert all(word in said for word in words)
        assert "x faster" not in said
        assert "autotune run" not in said


def test_piped_results_are_flushed_and_follow_the_encoding(monkeypatch: pytest.MonkeyPatch) -> None:
    piped = io.BytesIO()
    monkeypatch.setattr("sys.stdout", io.TextIOWrapper(piped, encoding="ascii"))
    out = results_console()
    assert out.encoding == "ascii"
    out.print("done")
    assert piped.getvalue() == b"done\n"


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        (Ending(Outcome.INTERRUPTED, "stopped by Ctrl-C"), 130),
        (Ending(Outcome.RAN_OUT, "it ended after 3 steps"), 2),
    ],
)
def test_ctrl_c_before_there_is_a_result_is_no_failure_of_the_program(
    ending: Ending, status: int, workplace: Path
) -> None:
    (workplace / "train.py").touch()
    with pytest.raises(typer.Exit) as ended, errors_told(Messages()):
        raise program_error(parse_program("train.py", (), workplace), ending)
    assert ended.value.exit_code == status
