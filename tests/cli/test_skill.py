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
from autotune.cli import dry_run
from autotune.cli.app import app
from autotune.cli.exit_status import ExitStatus
from autotune.cli.typed_line import _strayed
from autotune.errors import Terminated
from autotune.knobs.space.spacefile import load
from autotune.machine import conditions
from autotune.measurement.examination import Operators, StepBreakdown
from autotune.program.flags import Flag
from autotune.program.line import read as read_line
from autotune.results.data.comparison import Difference
from autotune.results.data.doctor import DoctorData, examined_part, machine_part
from autotune.results.finding import Finding
from autotune.results.result import SearchResult
from autotune.tuning import compare, outlook
from autotune.tuning.events import Events
from autotune.tuning.examine import examine
from autotune.tuning.reach import reach
from benchmarks.answer import read
from tests.docs.pages import ROOT
from tests.exports.stored import stored
from tests.made import HARDWARE, PROGRAM, make_profile
from tests.scripted import Script, ScriptedMachine, begin

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
    """The keys by command and option, as the headings name them."""
    titles = re.findall(r"^### (.* --json.*)$", TEXT, flags=re.MULTILINE)
    return {
        command: [row[0].strip("`") for row in rows(title)]
        for title in titles
        for command in re.findall(r"autotune (\w+(?: --[a-z-]+)?) --json", title)
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


def looked_at(folder: Path) -> dict[str, Any]:
    """What a dry run prints of a program with a flag, for which the budget is too short."""
    script = Script(profile=make_profile(flags=(Flag("--lr"),)))
    one = begin(folder, script, load("default"))
    study = one.study
    study.take_lease(force=True)
    found = outlook.outlook(one.run, study, Events(), one.machine.surroundings)
    return dry_run.as_data(found, reach(found.plan, found.space), "train.py")


def test_the_command_prints_it_and_it_begins_as_agents_look_for_skills() -> None:
    said = run("skill")
    assert said == TEXT
    assert re.match(r"---\nname: autotune\ndescription: .+\n---\n", said)


def test_each_command_line_in_it_parses() -> None:
    blocks = re.findall(r"```console\n(.*?)```", TEXT, re.DOTALL)
    lines = [line.strip().removeprefix("$ ") for b in blocks for line in b.strip().splitlines()]
    assert len(lines) >= 15
    llms = (ROOT / "llms.txt").read_text(encoding="utf-8")
    lines += re.findall(r"^- `(autotune .*?)`", llms, re.MULTILINE)
    assert len(lines) >= 20
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
    described = {command.split()[0] for command in json_sections()}
    assert described == {name for name in GROUP.commands if "--json" in options(name)}


@pytest.fixture(scope="module")
def printed(stored: SearchResult, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What each command prints, of the stored search or of the scripted machine."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(stored.run_dir.parents[1])
        Path("train.py").touch()
        stored.save("best.yaml")
        found = {
            name: json.loads(run(*line.split()))
            for name, line in {
                "show": "show --json",
                "show --list": "show --list --json",
                "show --html": "show --html --json",
                "show --md": "show --md --json",
                "export": "export --to snippet --json",
                "run": "run --print-command --json best.yaml train.py",
            }.items()
        }
    compared = compare.compare(
        (compare.ComparedSide(PROGRAM), compare.ComparedSide(PROGRAM)),
        HARDWARE,
        compare.CompareOptions(60.0),
        Events(),
        surroundings=ScriptedMachine(Script()).surroundings,
    )
    wasteful = StepBreakdown(operators=Operators(1000, 1e-4, 0.1))
    report = examine(
        PROGRAM,
        HARDWARE,
        Events(),
        surroundings=ScriptedMachine(Script(breakdown=wasteful)).surroundings,
    )
    doctor = DoctorData(
        machine=machine_part(HARDWARE, conditions.read(), [], "overlay"),
        program=examined_part(report),
    )
    return found | {
        "doctor": doctor.as_json(),
        "search --dry-run": looked_at(tmp_path_factory.mktemp("dry")),
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
    assert meanings == {int(status): status.meaning for status in ExitStatus}
    assert meanings.keys() >= {128 + number for number in Terminated.SIGNALS}
    words = {str(difference) for difference in Difference}
    assert {"faster", "slower"} <= words


def test_the_benchmarks_read_what_a_search_prints(printed: dict[str, Any]) -> None:
    answer = read(json.dumps(printed["search"]))
    assert answer.claim is not None
    assert answer.device == "cpu"
    assert answer.memory_bytes["host_bytes"]


def test_an_option_that_the_program_knows_is_its_own(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("add_argument('-o', '--output'); budget = 1")
    words = (str(script), "-o", "x", "--budget", "3", "--output=y", "-h")
    assert not [*_strayed(GROUP.commands["search"], read_line(words).program, words)]


def test_an_option_after_the_program_is_told_with_the_line_to_type(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.touch()
    for strayed, typed in (
        ("--budget", "--budget VALUE"),
        ("--budget 3m", "--budget 3m"),
        ("-o x.yaml", "-o x.yaml"),
        ("-v", "-v"),
    ):
        words = (str(script), *strayed.split())
        (told,) = _strayed(GROUP.commands["search"], read_line(words).program, words)
        assert told.endswith(f"autotune search {typed} {script}")
