"""Two configs or two programs compared: which is faster, and when that cannot be told."""

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from autotune.cli import app as command_line
from autotune.cli import compare as printed
from autotune.cli.app import app
from autotune.cli.exit_status import ExitStatus
from autotune.errors import BudgetError, ProgramError, UsageError
from autotune.machine import hardware
from autotune.measurement.gate import Gate, Verdict
from autotune.measurement.outcome import Ending
from autotune.program import line
from autotune.program.profile import RunLength
from autotune.program.revision import at_revision
from autotune.program.sources import digest_of
from autotune.results import bestfile
from autotune.results.bestfile import BestFile
from autotune.results.data.comparison import Difference
from autotune.rig.rig_factory import RigFactory
from autotune.tuning.compare import ComparedSide, CompareOptions, Comparison, as_data, compare
from autotune.tuning.events import Events
from autotune.tuning.plan import PAIRS
from autotune.tuning.start import first_start
from autotune.tuning.start.observe import throwaway_rigs
from autotune.tuning.surroundings import Surroundings
from tests.docs.project import scripted
from tests.made import HARDWARE, PROGRAM, commit, make_loader, make_profile
from tests.pictures import Entry, picture
from tests.rigging import write_best
from tests.scripted import CRASH, Question, Script, ScriptedMachine

KEYS = "schema finding speedup most_pct processes ratios changes sides training gate notes"
TRAIN = """
from pathlib import Path
import torch
from torch.utils.data import DataLoader, TensorDataset
from settings import BATCH
width = int(Path("data/width.txt").read_text())
Path("data/written.txt").touch()
x = torch.randn(512, width)
model = torch.nn.Linear(width, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for epoch in range(100):
    for batch, in DataLoader(TensorDataset(x), batch_size=BATCH):
        optimizer.zero_grad()
        model(batch).mean().backward()
        optimizer.step()
"""


def workers(folder: Path, count: int) -> BestFile:
    path = folder / f"{count}.yaml"
    write_best(path, {"workers": 0}, make_loader(), workers=count)
    return bestfile.read(path)


def configs(first: BestFile | None, second: BestFile | None) -> tuple[ComparedSide, ComparedSide]:
    return ComparedSide(PROGRAM, first, "a.yaml"), ComparedSide(PROGRAM, second, "b.yaml")


@pytest.mark.parametrize(
    ("first", "second", "difference"),
    [
        (None, 1, Difference.FASTER),
        (1, None, Difference.SLOWER),
        (1, 2, Difference.SLOWER),
        (2, 2, Difference.NONE),
    ],
)
def test_the_second_config_is_faster_slower_or_alike(
    first: int | None,
    second: int | None,
    difference: Difference,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    machine = ScriptedMachine(Script({"workers": {1: 1.5, 2: 1.2}}, noise=0.02))
    files = [None if n is None else workers(tmp_path, n) for n in (first, second)]
    found = compare(
        configs(*files),
        HARDWARE,
        CompareOptions(300.0),
        Events(),
        surroundings=machine.surroundings,
    )
    assert found.difference is difference
    printed.show(found, as_json=False)
    said = capsys.readouterr().out
    if difference is Difference.NONE:
        assert f"at most {found.most_pct:.0f} %" in said
        assert found.speedup.low <= 1 <= found.speedup.high
    else:
        assert f"b.yaml is {difference} than a.yaml" in said
        assert f"workers: {first or 0} → {second or 0}" in said
    printed.show(found, as_json=True)
    data = json.loads(capsys.readouterr().out)
    assert " ".join(data) == KEYS
    assert data["finding"] == str(difference)
    assert len(data["ratios"]) == data["processes"]
    assert min(data["ratios"]) <= data["speedup"]["estimate"] <= max(data["ratios"])
    assert [side["name"] for side in data["sides"]] == ["a.yaml", "b.yaml"]


@pytest.mark.parametrize(("bounded_by_steps", "truth"), [("", 1.3), ("--max-steps 200", 0.65)])
def test_a_batch_of_double_size_must_be_twice_as_fast_where_the_number_of_steps_is_fixed(
    tmp_path: Path, bounded_by_steps: str, truth: float
) -> None:
    path = tmp_path / "batch.yaml"
    write_best(path, {"batch_size": 64}, make_loader(), batch_size=128)
    length = RunLength(steps=200, where=bounded_by_steps) if bounded_by_steps else RunLength()
    profile = make_profile(length=length)
    script = Script({"batch_size": {128: 1.3}}, noise=0.02, profile=profile)
    sides = configs(None, bestfile.read(path))
    surroundings = ScriptedMachine(script).surroundings
    found = compare(sides, HARDWARE, CompareOptions(300.0), Events(), surroundings=surroundings)
    assert found.speedup.low < truth < found.speedup.high


def test_a_program_that_is_edited_meanwhile_is_not_compared_with_itself(tmp_path: Path) -> None:
    model = tmp_path / "model.py"

    def imports(process: int) -> dict[str, str]:
        model.write_text(f"LAYERS = {process // 3}")
        return {str(model): digest_of(model)}

    sides, machine = configs(None, workers(tmp_path, 1)), ScriptedMachine(Script(imports=imports))
    with pytest.raises(ProgramError, match=r"model\.py has changed"):
        compare(sides, HARDWARE, CompareOptions(300.0), Events(), surroundings=machine.surroundings)


def test_a_comparison_that_is_cut_short_tells_no_difference(tmp_path: Path) -> None:
    sides = configs(None, workers(tmp_path, 1))

    def compared(budget_s: float) -> Comparison:
        machine = ScriptedMachine(Script({"workers": {1: 1.5}}, start_s=30.0))
        return compare(
            sides, HARDWARE, CompareOptions(budget_s), Events(), surroundings=machine.surroundings
        )

    found = compared(70.0)
    assert found.processes == 1
    assert found.difference is Difference.UNCONFIRMED
    assert "only 1 was measured: a longer --budget decides" in found.notes[0]
    with pytest.raises(BudgetError, match="no time for a fresh process"):
        compared(20.0)


OLD = ComparedSide(replace(PROGRAM, name="old"), None, "git:HEAD~1", "a" * 40)
NEW = ComparedSide(PROGRAM, None, "written")


def two_programs(
    old: Script,
    new: Script,
    sides: tuple[ComparedSide, ComparedSide] = (OLD, NEW),
    options: CompareOptions | None = None,
) -> Comparison:
    """Compare two programs whose processes follow two scripts, in one virtual time."""
    machines = {"old": ScriptedMachine(old), PROGRAM.name: ScriptedMachine(new, seed=1)}
    clock = machines["old"].clock
    machines[PROGRAM.name].clock = clock

    def make_rigs(*args: Any, **kwargs: Any) -> RigFactory:
        return machines[args[0].name].surroundings.make_rigs(*args, **kwargs)

    surroundings = Surroundings(clock, make_rigs, lambda _: ())
    return compare(
        sides, HARDWARE, options or CompareOptions(600.0), Events(), surroundings=surroundings
    )


def test_two_programs_alternate_in_processes_of_their_kind_until_one_is_faster() -> None:
    found = two_programs(Script(noise=0.02), Script(noise=0.02, samples_per_s=1500.0))
    assert found.difference is Difference.FASTER
    assert found.speedup.low <= 1.5 <= found.speedup.high
    assert found.samples_per_s == pytest.approx((1000, 1500), rel=0.03)
    pairs = found.confirmation.processes
    assert all(pair.is_pair for pair in pairs)
    assert found.processes == 2 * len(pairs)
    assert [pair.starts_as_written for pair in pairs[:2]] == [True, False]


def test_where_steps_differ_in_samples_samples_per_second_are_compared_and_that_is_said(
    capsys: pytest.CaptureFixture[str],
) -> None:
    larger = make_profile(loaders=(make_loader(batch_size=128),))
    found = two_programs(Script(noise=0.02), Script(noise=0.02, profile=larger))
    assert found.difference is Difference.NONE
    printed.show(found, as_json=False)
    said = " ".join(capsys.readouterr().out.split())
    assert "A step has 64 samples in git:HEAD~1 and 128 in written, so samples/s are" in said
    assert "batch_size: 64 → 128" in said
    assert "git:HEAD~1 (aaaaaaaa): " in said


@pytest.mark.usefixtures("warm_starts")
def test_a_commit_trains_with_its_modules_on_the_data_of_today(workplace: Path) -> None:
    Path("train.py").write_text(TRAIN)
    Path("settings.py").write_text("BATCH = 8")
    Path(".gitignore").write_text("data/")
    commit(workplace)
    Path("settings.py").write_text("BATCH = 16")
    Path("data").mkdir()
    Path("data/width.txt").write_text("4")
    repository = str(Path.cwd() / ".git")  # git makes a folder of worktrees in it, and removes it

    def files() -> dict[str, Entry]:
        return {path: it for path, it in picture(Path.cwd()).items() if path != repository}

    before = files()
    with (
        at_revision(line.read(["train.py"]).program, "HEAD") as found,
        throwaway_rigs(found.program, hardware.detect()) as rigs,
    ):
        started = first_start.observe(rigs, lambda: None)
        assert not isinstance(started, Ending)
        with started.rig:
            profile = started.ready.profile
    assert profile.training_loader is not None
    assert profile.training_loader.batch_size == 8
    assert files() == before


# The scatter of real processes: their ratios spread by 1.4 times as much
GATED = Script(noise=0.05, process_noise=0.03)
GATE = Gate.read("5%")


@pytest.mark.parametrize(
    ("slower", "verdict", "status"),
    [(1.0, Verdict.PASSED, 0), (1.1, Verdict.PASSED, 0), (1 / 1.4, Verdict.FAILED, 1)],
)
def test_a_gate_goes_on_until_a_slowdown_is_ruled_out_or_sure(
    slower: float, verdict: Verdict, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    new = replace(GATED, samples_per_s=slower * GATED.samples_per_s)
    found = two_programs(GATED, new, options=CompareOptions(900.0, gate=GATE))
    assert found.verdict is verdict
    assert GATE.is_over(found.confirmation)
    data = as_data(found)["gate"]
    assert (data["verdict"], data["status"], data["fail_if_slower_pct"]) == (verdict, status, 5.0)
    printed.show(found, as_json=False)
    assert f"Gate: {verdict}. {found.gate_reason}." in " ".join(capsys.readouterr().out.split())
    if slower == 1.0:  # more than a claim would ever take
        assert len(found.confirmation.processes) > max(PAIRS)


def test_a_gate_says_that_it_cannot_tell_when_its_budget_is_used_up() -> None:
    noisy = replace(GATED, process_noise=0.1)
    found = two_programs(noisy, noisy, options=CompareOptions(120.0, gate=GATE))
    assert found.verdict is Verdict.UNDECIDED
    assert as_data(found)["gate"]["status"] == 4
    assert "neither ruled out nor sure" in found.gate_reason
    few = two_programs(noisy, noisy, options=CompareOptions(40.0, gate=GATE))
    assert not few.confirmation.is_enough
    assert few.verdict is Verdict.UNDECIDED


def test_a_gate_counts_no_pair_of_which_something_else_took_the_machine() -> None:
    """Of one commit and itself, as others begin to slow the second one eight times."""
    for since_s, verdict in ((0.0, Verdict.UNDECIDED), (400.0, Verdict.PASSED)):
        busy = replace(GATED, busy=(since_s, 8.0))
        found = two_programs(GATED, busy, options=CompareOptions(900.0, gate=GATE))
        assert found.verdict is verdict
        dropped, counted = found.confirmation.dropped, found.confirmation.processes
        assert dropped
        assert (dropped == counted) is (verdict is Verdict.UNDECIDED)
        of = f"{len(dropped)} of {2 * len(dropped)}"
        said = f"{len(dropped)} pairs do not count: other programs used the CPU in {of} processes"
        assert found.notes[0] == said
        lack = ["a claim needs 3 fresh processes of each config, and only 0 count: an idle machine"]
        assert [one.removesuffix(" decides") for one in found.notes[1:]] == (
            lack if verdict is Verdict.UNDECIDED else []
        )
    assert found.speedup.low > 0.5, "these are the pairs before"


@pytest.mark.parametrize("text", ["5%", "5", " 2.5 %", "0", "100%", "-5", "five", "nan"])
def test_a_gate_is_a_percentage(text: str) -> None:
    number = text.strip().removesuffix("%").strip()
    if number in {"5", "2.5"}:
        assert Gate.read(text) == Gate(float(number))
        return
    with pytest.raises(UsageError, match=r"percentage above 0 and below 100, such as 5%"):
        Gate.read(text)


def same_training(script: Script, file: BestFile, budget_s: float = 300.0) -> Comparison:
    sides = (ComparedSide(PROGRAM), ComparedSide(PROGRAM, file, "best.yaml"))
    options = CompareOptions(budget_s, gate=GATE)
    return compare(sides, HARDWARE, options, Events(), ScriptedMachine(script).surroundings)


def test_a_config_is_faster_and_trains_the_same(tmp_path: Path) -> None:
    found = same_training(Script({"workers": {1: 1.5}}), workers(tmp_path, 1))
    assert found.verdict is Verdict.PASSED
    assert found.training_note == "Training: same within rounding over 36 steps."
    data = as_data(found)["training"]
    assert (data["sameness"], data["is_other"]) == ("same within rounding", False)


def test_a_config_that_trains_something_else_ends_the_gate_however_fast_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = Script({"workers": {1: 1.5}}, trains=lambda config: 1.02 if config["workers"] else 1.0)
    found = same_training(script, workers(tmp_path, 1))
    assert found.difference is Difference.FASTER
    assert found.verdict is Verdict.FAILED
    assert "workers=1 changes the training: losses" in found.training_note
    assert "trains something else" in found.gate_reason
    assert as_data(found)["training"]["is_other"]
    printed.show(found, as_json=False)
    assert "changes the training" in capsys.readouterr().out


def test_a_config_under_which_short_epochs_fail_ends_the_gate(tmp_path: Path) -> None:
    def ends(question: Question) -> Ending | None:
        is_it = question.config is not None and bool(question.config["workers"])
        return CRASH if question.kind == "rehearse" and is_it else None

    found = same_training(Script(ends=ends), workers(tmp_path, 1))
    assert found.verdict is Verdict.FAILED
    assert "workers=1 fails outside of the training loop" in found.training_note
    assert found.gate_reason == "The program fails under best.yaml, and not as it is written"


def test_a_config_under_which_nothing_trains_is_named(tmp_path: Path) -> None:
    def ends(question: Question) -> Ending | None:
        return CRASH if question.config is not None and question.config["workers"] else None

    with pytest.raises(ProgramError, match=r"train fails under best\.yaml: ValueError") as failed:
        same_training(Script(ends=ends), workers(tmp_path, 1))
    assert "As it is written, it trained before" in str(failed.value)


def test_without_time_for_it_training_is_not_compared_and_that_is_said(tmp_path: Path) -> None:
    found = same_training(Script({"workers": {1: 1.5}}, start_s=30.0), workers(tmp_path, 1), 110.0)
    assert found.verdict is Verdict.PASSED
    assert "not compared: there was no time" in found.training_note
    assert not found.trains_otherwise


def test_the_training_of_two_files_or_of_two_commits_is_not_asked_for(tmp_path: Path) -> None:
    both = configs(workers(tmp_path, 1), workers(tmp_path, 2))
    surroundings = ScriptedMachine(Script()).surroundings
    files = compare(both, HARDWARE, CompareOptions(120.0), Events(), surroundings)
    for found in (files, two_programs(Script(), Script())):
        assert found.training is None
        assert as_data(found)["training"] is None
        assert as_data(found)["gate"] is None


@pytest.mark.parametrize(
    ("factor", "status"), [(1.5, 0), (0.6, ExitStatus.SLOWER), (0.96, ExitStatus.UNDECIDED)]
)
def test_the_command_ends_with_the_status_of_its_gate(
    factor: float, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train.py").touch()
    workers(tmp_path, 1)
    line = ["compare", "--json", "--quiet", "--budget", "100s", "--fail-if-slower", "5%"]
    with scripted(Script({"workers": {1: factor}}, ratio_noise=0.05)):
        done = CliRunner().invoke(app, [*line, "1.yaml", "train.py", "--epochs", "3"])
    assert done.exit_code == status, done.output
    assert json.loads(done.stdout)["gate"]["status"] == status


@pytest.mark.parametrize(
    ("raised", "status"),
    [(EOFError, ExitStatus.DEFECT), (KeyboardInterrupt, ExitStatus.INTERRUPTED)],
)
def test_a_defect_ends_with_a_status_that_no_gate_has(
    raised: type[BaseException],
    status: ExitStatus,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def broken(*_: object) -> None:
        raise raised("the machine")  # click would take the first for an abort, with status 1

    monkeypatch.setattr(hardware, "detect", broken)
    monkeypatch.setattr(sys, "argv", ["autotune", "doctor"])
    monkeypatch.setattr(command_line, "outlive_readers", lambda: None)
    with pytest.raises(SystemExit) as end:
        command_line.main()
    assert end.value.code == int(status)
    assert int(status) not in {0, 1, 4}
    told = "EOFError: the machine" in capsys.readouterr().err
    assert told is (status is ExitStatus.DEFECT)
