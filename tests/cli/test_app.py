import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

import autotune
from autotune import exports
from autotune.cli import compare
from autotune.cli.app import app
from autotune.cli.command_line import GONE_COMMANDS, GONE_OPTIONS
from autotune.errors import UsageError
from autotune.machine import hardware
from autotune.measurement.interval import Interval
from autotune.results import bestfile
from autotune.tuning.search_request import GONE
from tests.docs.project import scripted
from tests.made import make_loader, make_profile
from tests.rigging import PROGRAMS, run_command, write_best
from tests.scripted import Script

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("warm_starts")]


def complaint(*arguments: str) -> str:
    """Run a command that must be refused, and return what it said."""
    done = run_command(*arguments)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr.replace("Traceback (most recent call last)", "", 1)
    return done.stderr


def said_here(*arguments: str, status: int = 2) -> str:
    """Run a command that starts no program in this process, and return what it said."""
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == status, done.output
    return done.output


def test_wrong_options_are_refused_with_the_mend_and_leave_no_run(workplace: Path) -> None:
    (workplace / "train.py").touch()
    space = workplace / "my space.yaml"
    space.write_text("version: 1\nknobs:\n  num_worker: auto\nextra: 1\n")
    batches = "--keep-global-batch --tune batch_size"
    for options, said in {
        "trian.py": "There is no program 'trian.py'. Did you mean 'train.py'?",
        "--tune batchsize train.py": "--tune: Unknown setting 'batchsize'. Did you mean",
        "--space defualt train.py": "There is no search space 'defualt'. Did you mean 'default'?",
        "--space 'my space.yaml' train.py": "my space.yaml:4: Unknown key 'extra'.",
        "--set workers=many train.py": "setting 'workers' takes a whole number",
        "--set precision train.py": "--set takes NAME=VALUE or NAME=VALUE,VALUE, not 'precision'.",
        "--set precision=bf16,fp8 train.py": "setting 'precision' takes fp32 or tf32 or medium or",
        "--set hidden=3 train.py": "--set: Unknown setting 'hidden'.",
        "--may-change all train.py": "There is no level 'all'",
        "": "What should be searched? autotune search train.py",
        "--dry-run": "What should be searched? autotune search --dry-run train.py",
        "--budget soon train.py": "'soon' is not a duration. Write for example 90s, 3m or 1h30m.",
        "--lr-rule cubic train.py": "There is no learning-rate rule 'cubic'",
        f"{batches} train.py": "but --keep-global-batch keeps the samples",
    }.items():
        done = CliRunner().invoke(app, ["search", *shlex.split(options)])
        assert done.exit_code == 2, options
        assert said in done.output, options
    assert "'autotune search PROGRAM' starts one" in said_here("resume")
    assert "There is no fence 'steel'" in said_here("resume", "--fence", "steel")
    assert not (workplace / ".autotune").exists()


MAIN = "budget tune may-change max-memory output dry-run verbose quiet json"


def test_the_help_is_short_and_has_one_line_an_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    group: Any = typer.main.get_command(app)
    whole = said_here("--help", status=0).splitlines()
    assert len(whole) <= 25
    visible = [name for name, one in group.commands.items() if not one.hidden]
    assert visible == ["search", "run", "resume", "compare", "doctor", "show", "export"]
    for name in visible:
        lines = said_here(name, "--help", status=0).splitlines()
        assert len(lines) <= 60, name
        assert not [line for line in lines if len(line) > 80 or line.endswith("…")]
        for option in group.commands[name].params:
            if option.param_type_name == "option" and not option.hidden:
                word = max(option.opts, key=len)
                (line,) = [line for line in lines if re.match(rf"  (-\w, )?{word} ", line)]
                assert len(line.split("  ")[-1]) > len("Any."), line
    search = said_here("search", "--help", status=0).splitlines()[:24]
    for option in MAIN.split():
        assert [line for line in search if f"--{option} " in line], option


def test_an_old_word_is_refused_with_what_to_type_now(workplace: Path) -> None:
    (workplace / "train.py").touch()
    for name, now in GONE_COMMANDS.items():
        assert said_here(name, "train.py") == f"autotune: 'autotune {name}' is now: {now}\n"
    for option, now in GONE_OPTIONS.items():
        for typed in ([option, "x"], [f"{option}=x"]):
            told = said_here("search", *typed, "train.py")
            assert told.startswith(f"autotune: {option} is now {now}; ")
            assert len(told.splitlines()) == 1
    assert "No such option: --buget" in said_here("search", "--buget", "3m", "train.py")
    assert "Did you mean 'search'?" in said_here("serach", "train.py")
    for name, (_, now) in GONE.items():
        with pytest.raises(UsageError, match=re.escape(f"{name}=… is now {now}.")):
            autotune.search("train.py", **{name: 1})  # type: ignore[arg-type]


def test_run_takes_a_program_from_a_file_only_where_a_search_of_this_folder_holds_it(
    searches: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Sequence[str]] = []
    monkeypatch.setattr(os, "execve", lambda _path, argv, _environment: started.append(argv))
    shutil.copytree(searches, here := tmp_path / "here")
    monkeypatch.chdir(here)
    shutil.copy(next(here.glob(".autotune/*/best.yaml")), "best.yaml")
    line = bestfile.read(Path("best.yaml")).program
    for words in (["run"], ["run", "best.yaml"]):
        told = said_here(*words, status=0)
        assert f"autotune run best.yaml {line}" in told
    assert len(started) == 2
    assert shlex.join(started[0]).endswith(f" best.yaml {line}")
    for theirs in ("other.py", f"LD_PRELOAD=/evil.so {line}", f"{line} --more"):
        text = Path("best.yaml").read_text().replace(f"program: {line}\n", f"program: {theirs}\n")
        Path("theirs.yaml").write_text(text)
        told = said_here("run", "theirs.yaml")
        assert f"type:\n  autotune run theirs.yaml {theirs}\n" in told
    shutil.rmtree(".autotune")
    assert "no search of this folder is about it" in said_here("run")
    told = said_here("run", "train.py", "--epochs", "3")
    assert "The file of a search comes first: autotune run best.yaml train.py --epochs 3" in told
    assert len(started) == 2


def test_one_side_is_compared_with_the_program_as_written(workplace: Path) -> None:
    for name in ("train.py", "best.yaml"):
        (workplace / name).touch()
    (workplace / ".autotune" / "fast").mkdir(parents=True)
    (workplace / ".autotune" / "fast" / "study.db").touch()
    for words, sides, program in (
        ("best.yaml train.py --epochs 3", "written best.yaml", "train.py --epochs 3"),
        ("fast python -m train", "written fast", "python -m train"),
        ("git:HEAD train.py written", "written git:HEAD", "train.py written"),
        ("written best.yaml train.py", "written best.yaml", "train.py"),
        ("best.yaml other.yaml train.py", "best.yaml other.yaml", "train.py"),
        ("best.yaml fast train.py", "best.yaml fast", "train.py"),
        ("best.yaml fsat train.py", "best.yaml fsat", "train.py"),
    ):
        a, b, *rest = words.split()
        names, line = compare.parted(a, b, rest[0] if rest else "", rest[1:])
        assert [*names] == sides.split(), words
        assert line == program.split(), words


def test_a_bug_report_and_the_list_of_formats_need_no_program() -> None:
    told = said_here("doctor", "--report", status=0)
    for word in ("autotune", "torch", "python", "CPU", "GPUs", "system"):
        assert word in told
    assert str(Path.home()) not in told
    assert "--report is about this machine" in said_here("doctor", "--report", "train.py")
    told = said_here("export", status=0)
    for name in (*exports.formats(), *exports.TRACKERS):
        assert name in told


def test_a_script_that_fails_by_itself_ends_the_search_with_its_traceback(workplace: Path) -> None:
    said = complaint("search", str(PROGRAMS / "fails.py"))
    assert "fails by itself, before autotune changed anything" in said
    assert "no such data set: imaginary" in said
    assert "fails.py" in said
    assert "autotune/inside" not in said
    shown = said_here("show")
    assert "measured nothing" in shown
    assert "resume" not in shown
    assert "the program failed" in said_here("show", "--list", status=0)


def test_a_program_that_cannot_be_searched_is_refused_with_the_reason(workplace: Path) -> None:
    parses = "import argparse\nargparse.ArgumentParser().parse_args()\n"
    (workplace / "parses.py").write_text(parses)
    python = sys.executable
    for words, said in (
        (
            ("--space", "none", "--", python, "parses.py", "--budget", "3m"),
            f"autotune search --budget 3m -- {python} parses.py",
        ),
        ((str(PROGRAMS / "never_trains.py"),), "the program ended after 0 steps"),
    ):
        assert said in " ".join(complaint("search", *words).split())
    with scripted(Script(profile=make_profile(loaders=()))):
        told = said_here("search", "--tune", "workers", "parses.py")
    assert "workers: the program trains without a torch DataLoader" in told


def test_each_command_reads_a_line_and_names_itself_in_the_line_to_type(workplace: Path) -> None:
    (workplace / "train.py").touch()
    write_best(workplace / "best.yaml", baseline={"workers": 0})
    for command in (
        ["search", "--budget", "9s"],
        ["doctor"],
        ["search", "--dry-run", "--budget", "9s"],
        ["run", "best.yaml"],
    ):
        done = CliRunner().invoke(app, [*command, "--", "uv", "run", "python", "train.py"])
        assert done.exit_code == 2, command
        assert "uv run autotune search -- python train.py" in done.output, command
    said = complaint("run", "best.yaml", "--", "uv", "run", "python", "train.py")
    assert "\n  uv run autotune run best.yaml -- python train.py\n" in said
    line = ["A=1", "torchrun", "--nproc-per-node", "2", "-m", "train", "x"]
    printed = run_command("run", "--print-command", "best.yaml", *line)
    assert "A=1" in printed.stdout
    assert "--ranks 2" in printed.stdout
    assert "autotune.inside.train best.yaml -m train x\n" in printed.stdout
    assert "used one process, and this line starts 2 ranks" in printed.stderr
    by_option = said_here("search", "--space", "none", "-m", "trian")
    assert "There is no module 'trian'" in by_option


def test_a_budget_without_a_baseline_is_refused_and_its_run_is_found(workplace: Path) -> None:
    said = complaint("search", "--budget", "2s", "--name", "short", str(PROGRAMS / "plain.py"), "l")
    assert "A budget of 2 s is too short" in said
    assert "Try --budget 3m" in said
    other = said_here("search", "--name", "short", str(PROGRAMS / "conv.py"))
    assert "It is a search of:" in other
    assert "plain.py" in other
    assert "or choose another --name" in other
    assert "There is no search 'shrot'" in (mistyped := said_here("resume", "shrot"))
    assert "Did you mean 'short'?" in mistyped


def test_run_and_apply_take_the_second_config_of_a_file_where_they_are_asked_to(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = workplace / "best.yaml"
    write_best(file, {"batch_size": 64, "workers": 0}, make_loader(), workers=2)
    words = ("run", "--larger-batch", "--explain", "best.yaml")
    monkeypatch.chdir(workplace)
    refusal = "no config with a larger batch. Leave out --larger-batch"
    assert refusal in said_here(*words)
    with pytest.raises(UsageError, match=refusal):
        autotune.apply(file, larger_batch=True)
    second = bestfile.LargerBatch(config={"batch_size": 128}, speedup=Interval(2.0, 1.9, 2.1))
    file.write_text(bestfile.read(file).model_copy(update={"larger_batch": second}).text())
    assert run_command(*words).stdout.startswith("batch_size=128. While the program trains")


def test_run_trains_with_what_was_found_on_machines_of_this_kind(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, machine = workplace / "best.yaml", hardware.detect()
    write_best(file, {"batch_size": 64, "workers": 0}, make_loader(), workers=2)
    monkeypatch.chdir(workplace)
    for name, changes in ((machine.fingerprint, "workers=1"), ("of others", "workers=2")):
        group = bestfile.GroupSection(machine="GPU, CPU", config={"workers": 1})
        best = bestfile.read(file).model_copy(update={"groups": {name: group}})
        (workplace / "shared.yaml").write_text(best.text())
        explained = run_command("run", "--explain", "shared.yaml").stdout
        assert explained.startswith(f"{changes}. While the program trains")
        line = ("run", "--print-command", "shared.yaml", str(PROGRAMS / "never_trains.py"))
        assert "shared.yaml: It holds settings for 2 kinds of machine" in run_command(*line).stderr


@pytest.mark.real_starts
def test_run_passes_arguments_output_and_exit_code_through(workplace: Path) -> None:
    write_best(workplace / "best.yaml", {"flush_denormal": False}, flush_denormal=True)
    echo = "import sys\nprint(__name__, __file__, sys.argv, sys.path[0])\n"
    own_hook = (
        "sys.excepthook = lambda kind, error, t: print(kind, error, t.tb_lineno, t.tb_next)\n"
    )
    for ends, status in (
        ("sys.exit(7)", 7),
        (f"assert sys.excepthook is sys.__excepthook__\n{own_hook}1 / 0", 1),
        ("(", 1),  # it does not even begin
    ):
        (workplace / "echo.py").write_text(f"{echo}{ends}\n")
        done = run_command("run", "best.yaml", "echo.py", "--budget", "7")
        plain = subprocess.run(
            [sys.executable, "echo.py", "--budget", "7"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == plain.returncode == status, ends
        assert done.stdout == plain.stdout
        assert done.stderr.endswith(plain.stderr), "no frame of autotune is shown"
        assert "Traceback" in plain.stderr or "Traceback" not in done.stderr


def test_run_warns_when_machine_torch_or_program_differ(workplace: Path) -> None:
    best = workplace / "best.yaml"
    write_best(best, baseline={"workers": 0})
    text = best.read_text().replace("search: {", "search: {digest: '000000000000', ")
    best.write_text(re.sub(r"torch: [\d.]+", "torch: 1.0.0", text).replace("cores: ", "cores: 9"))
    done = run_command("run", "best.yaml", str(PROGRAMS / "never_trains.py"))
    assert done.returncode == 0
    assert "torch: 1.0.0 during the search" in done.stderr
    assert "cores: 9" in done.stderr
    assert "never_trains.py is another program than the one that was searched" in done.stderr
    assert done.stdout == "hello\n"
