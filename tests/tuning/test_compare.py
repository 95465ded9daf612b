"""Two configs or two programs compared: which is faster, and when that cannot be told."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.cli import compare as printed
from autotune.errors import BudgetError, ProgramError
from autotune.machine import hardware
from autotune.measurement.outcome import Ending
from autotune.program import line
from autotune.program.profile import RunLength
from autotune.program.revision import at_revision
from autotune.program.sources import digest_of
from autotune.results import bestfile
from autotune.results.bestfile import BestFile
from autotune.results.comparison import Difference
from autotune.rig.rig_factory import RigFactory
from autotune.tuning.compare import ComparedSide, Comparison, compare
from autotune.tuning.events import Events
from autotune.tuning.start import first_start
from autotune.tuning.start.observe import throwaway_rigs
from autotune.tuning.surroundings import Surroundings
from tests.made import HARDWARE, PROGRAM, commit, make_loader, make_profile
from tests.pictures import Entry, picture
from tests.rigging import write_best
from tests.scripted import Script, ScriptedMachine

KEYS = "schema finding speedup most_pct processes changes sides training gate notes"
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
    found = compare(configs(*files), HARDWARE, 300.0, Events(), surroundings=machine.surroundings)
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
    found = compare(sides, HARDWARE, 300.0, Events(), surroundings=surroundings)
    assert found.speedup.low < truth < found.speedup.high


def test_a_program_that_is_edited_meanwhile_is_not_compared_with_itself(tmp_path: Path) -> None:
    model = tmp_path / "model.py"

    def imports(process: int) -> dict[str, str]:
        model.write_text(f"LAYERS = {process // 3}")
        return {str(model): digest_of(model)}

    sides, machine = configs(None, workers(tmp_path, 1)), ScriptedMachine(Script(imports=imports))
    with pytest.raises(ProgramError, match=r"model\.py has changed"):
        compare(sides, HARDWARE, 300.0, Events(), surroundings=machine.surroundings)


def test_a_comparison_that_is_cut_short_tells_no_difference(tmp_path: Path) -> None:
    sides = configs(None, workers(tmp_path, 1))

    def compared(budget_s: float) -> Comparison:
        machine = ScriptedMachine(Script({"workers": {1: 1.5}}, start_s=30.0))
        return compare(sides, HARDWARE, budget_s, Events(), surroundings=machine.surroundings)

    found = compared(70.0)
    assert found.processes == 1
    assert found.difference is Difference.UNCONFIRMED
    assert "only 1 was measured: a longer --budget decides" in found.notes[0]
    with pytest.raises(BudgetError, match="no time for a fresh process"):
        compared(20.0)


OLD = ComparedSide(replace(PROGRAM, name="old"), None, "git:HEAD~1", "a" * 40)
NEW = ComparedSide(PROGRAM, None, "written")


def two_programs(
    old: Script, new: Script, sides: tuple[ComparedSide, ComparedSide] = (OLD, NEW)
) -> Comparison:
    """Compare two programs whose processes follow two scripts, in one virtual time."""
    machines = {"old": ScriptedMachine(old), PROGRAM.name: ScriptedMachine(new)}
    clock = machines["old"].clock
    machines[PROGRAM.name].clock = clock

    def make_rigs(*args: Any, **kwargs: Any) -> RigFactory:
        return machines[args[0].name].surroundings.make_rigs(*args, **kwargs)

    surroundings = Surroundings(clock, make_rigs, lambda _: ())
    return compare(sides, HARDWARE, 600.0, Events(), surroundings=surroundings)


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
