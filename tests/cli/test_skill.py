"""The instructions for coding agents say what the command line really does."""

import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import autotune
from autotune.cli import knob_sheet, messages
from autotune.cli import search as searching
from autotune.cli.app import app
from autotune.cli.doctor import machine_data, program_data
from autotune.cli.typed_line import _strayed
from autotune.errors import Terminated
from autotune.machine import conditions
from autotune.measurement.examination import Operators, StepBreakdown
from autotune.program.flags import Flag
from autotune.program.line import read as read_line
from autotune.results.finding import Finding
from autotune.results.result import SearchResult
from autotune.tuning import compare
from autotune.tuning.events import Events
from autotune.tuning.examine import examine
from benchmarks.answer import read
from tests.exports.stored import stored
from tests.made import HARDWARE, PROFILE, PROGRAM
from tests.scripted import Script, ScriptedMachine

__all__ = ["stored"]
TEXT = (Path(autotune.__file__).parent / "cli" / "SKILL.md").read_text(encoding="utf-8")
GROUP: Any = typer.main.get_command(app)


def run(*arguments: str) -> str:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 0, done.output
    return done.stdout


def options(command: str) -> set[str]:
    return {name for parameter in GROUP.commands[command].params for name in parameter.opts}


def rows(section: str) -> list[list[str]]:
    """The rows of the tables below a heading, without their heads."""
    parts = re.split(r"^#+ (.*)$", TEXT, flags=re.MULTILINE)
    body = dict(zip(parts[1::2], parts[2::2], strict=True))[section]
    lines = [line.strip() for line in body.splitlines() if line.strip().startswith("|")]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in cells[1:] if not set(row[0]) <= {"-"}]


def json_sections() -> dict[str, list[str]]:
    """The keys by command, as the headings name the commands."""
    titles = re.findall(r"^### (.* --json.*)$", TEXT, flags=re.MULTILINE)
    return {
        command: [row[0].strip("`") for row in rows(title)]
        for title in titles
        for command in re.findall(r"autotune (\w+) --json", title)
    }


def reached(data: Any, path: str) -> Iterator[Any]:
    """Yield what a path such as ``trials[].why`` leads to, for each entry of a list."""
    name, _, rest = path.partition(".")
    if name.endswith("[]"):
        entries = data[name.removesuffix("[]")] if name != "[]" else data
        for entry in entries:
            if not rest or rest.partition(".")[0] in entry:
                yield from reached(entry, rest) if rest else [entry]
    elif rest:
        yield from reached(data[name], rest)
    elif name in data:
        yield data[name]


def test_the_command_prints_it_and_it_begins_as_agents_look_for_skills() -> None:
    said = run("skill")
    assert said == TEXT
    assert re.match(r"---\nname: autotune\ndescription: .+\n---\n", said)


def test_each_command_line_in_it_parses() -> None:
    blocks = re.findall(r"```console\n(.*?)```", TEXT, re.DOTALL)
    lines = [line.strip().removeprefix("$ ") for b in blocks for line in b.strip().splitlines()]
    assert len(lines) >= 15
    for line in lines:
        _, name, *arguments = shlex.split(line, comments=True)
        GROUP.commands[name].make_context(name, arguments, resilient_parsing=False)


def test_each_command_and_option_that_it_names_exists() -> None:
    prose = re.sub(r"```.*?```", "", TEXT, flags=re.DOTALL)
    quoted = [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", prose)]
    assert len(quoted) > 50
    named = {match[1] for code in quoted if (match := re.match(r"autotune (\w+)", code))}
    assert {"search", "resume", "run"} <= named <= set(GROUP.commands)
    for code in quoted:
        command = re.match(r"autotune (\w+)", code)
        known = options(command[1]) if command else set().union(*map(options, GROUP.commands))
        if "train.py" not in code:
            assert set(re.findall(r"--[\w-]+", code)) <= known, code


def test_the_commands_that_print_json_are_those_that_it_describes() -> None:
    described = {*json_sections()}
    assert described == {name for name in GROUP.commands if "--json" in options(name)}


@pytest.fixture(scope="module")
def printed(stored: SearchResult) -> dict[str, Any]:
    """What each command prints, of the stored search or of the scripted machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(stored.run_dir.parents[1])
        Path("train.py").touch()
        stored.save("best.yaml")
        found = {
            name: json.loads(run(*line.split()))
            for name, line in {
                "show": "show --json",
                "runs": "runs --json",
                "report": "report --json",
                "export": "export --to snippet --json",
                "run": "run --print-command --json best.yaml train.py",
            }.items()
        }
    compared = compare.compare(
        (compare.ComparedSide(PROGRAM), compare.ComparedSide(PROGRAM)),
        HARDWARE,
        60.0,
        Events(),
        surroundings=ScriptedMachine(Script()).surroundings,
    )
    wasteful = StepBreakdown(operators=Operators(1000, 1e-4))
    report = examine(
        PROGRAM,
        HARDWARE,
        Events(),
        surroundings=ScriptedMachine(Script(breakdown=wasteful)).surroundings,
    )
    doctor = {"machine": machine_data(HARDWARE, conditions.read(), [], "overlay")}
    return found | {
        "doctor": doctor | {"program": program_data(report)},
        "knobs": json.loads(
            knob_sheet.as_json(knob_sheet.rows(HARDWARE, PROFILE), "train.py", [Flag("--lr")])
        ),
        "search": found["show"],
        "resume": found["show"],
        "compare": compare.as_data(compared),
    }


def test_the_keys_that_it_lists_are_those_that_are_printed(printed: dict[str, Any]) -> None:
    assert printed.keys() == json_sections().keys()
    for command, keys in json_sections().items():
        for key in keys:
            assert [*reached(printed[command], key)], f"{command}: {key} is not printed"
        top = printed[command]
        listed = {key.removeprefix("[].") for key in keys if not re.search(r"\w(\[\])?\.", key)}
        assert listed == (top[0] if isinstance(top, list) else top).keys(), command
    breakdown = printed["doctor"]["program"]["breakdown"]
    assert {"synthetic_data_throughput", "loader_throughput"} <= breakdown.keys()
    assert printed["doctor"]["program"]["samples_per_s"].keys() == {"estimate", "low", "high"}


def test_its_findings_and_exit_codes_are_all_that_there_are() -> None:
    assert [row[0].strip("`") for row in rows("Procedure")] == [*Finding]
    meanings = {int(code): meaning for code, meaning in rows("Exit codes")}
    assert meanings.keys() == {
        *(0, messages.FAILED, searching.NOTHING_MEASURED, messages.INTERRUPTED),
        *(128 + number for number in Terminated.SIGNALS),
    }
    assert "refused" in meanings[messages.FAILED]
    assert "only the baseline" in meanings[searching.NOTHING_MEASURED]
    assert "Ctrl-C" in meanings[messages.INTERRUPTED]
    words = {str(difference) for difference in compare.Difference}
    assert {"faster", "slower"} <= words


def test_the_benchmarks_read_what_a_search_prints(printed: dict[str, Any]) -> None:
    answer = read(json.dumps(printed["search"]))
    assert answer.claim is not None
    assert answer.device == "cpu"
    assert answer.memory_bytes["host_bytes"]


def test_an_option_after_the_program_is_told_with_the_line_to_type(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    for strayed, typed in (("--budget", "--budget VALUE"), ("--budget 3m", "--budget 3m")):
        words = (str(script), *strayed.split())
        (told,) = _strayed(GROUP.commands["search"], read_line(words).program, words)
        assert told.endswith(f"autotune search {typed} {script}")
