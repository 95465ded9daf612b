import inspect
import logging
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

import autotune
from autotune import api
from autotune.cli.app import app
from autotune.errors import BudgetError, FenceError, ProgramError, UsageError
from autotune.knobs.space.space import SearchSpace
from autotune.machine import hardware
from autotune.measurement.interval import LogRatio
from autotune.program.applied_config import ProgramTraits
from autotune.program.config import Config, KnobValue
from autotune.program.fence_options import FenceKind, FenceOptions
from autotune.program.flags import Flag
from autotune.program.program import parse_program
from autotune.results.record import ClaimProcess, SearchInfo, SearchOptions
from autotune.tuning.events import Phase
from autotune.tuning.search_request import SearchRequest, described
from autotune.tuning.storage import search_dir
from autotune.tuning.storage.search_dir import SearchDir
from autotune.tuning.storage.study import Study
from autotune.tuning.surroundings import THIS_MACHINE
from tests.docs.project import scripted
from tests.made import make_best, make_loader
from tests.programs import functions
from tests.rigging import PROGRAMS, base_setting, open_rig, write_best
from tests.scripted import Script, begin

pytestmark = pytest.mark.usefixtures("warm_starts")

NOTEBOOK = """
import autotune
from autotune.errors import BudgetError

def make_train(width):
    def train():
        import torch
        model = torch.nn.Linear(width, 1)
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        while True:
            model(torch.randn(8, width)).square().mean().backward()
            optimizer.step()
    return train

try:
    autotune.search(make_train(4), budget=3, name="notebook")
except BudgetError as error:
    print("measured:", "too short" in str(error))
"""


def test_a_function_is_searched_by_its_name_or_travels_by_cloudpickle(workplace: Path) -> None:
    with pytest.raises(BudgetError, match="too short"):
        autotune.search(functions.train, budget=3, name="named")
    assert not list((workplace / ".autotune" / "named").glob("*.pkl"))
    done = subprocess.run(
        [sys.executable, "-c", NOTEBOOK], capture_output=True, text=True, check=False
    )
    assert done.stdout == "measured: True\n", done.stderr
    assert (workplace / ".autotune" / "notebook" / "program.pkl").is_file()


def test_a_command_is_read_as_in_a_shell_and_errors_have_the_traceback(workplace: Path) -> None:
    (workplace / "fails.py").write_text("raise ValueError(__spec__.name)\n")
    path = f"PATH={Path(sys.executable).parent}"
    with pytest.raises(ProgramError, match="ValueError: fails") as caught:
        autotune.search(command=f"{path} python -m fails")
    assert "fails.py" in caught.value.program_traceback


def test_a_fence_that_fails_takes_the_folder_only_of_a_search_that_started_nothing(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workplace / "train.py").touch()

    def fails(*_: object, **__: object) -> None:
        raise FenceError("it fails")

    with scripted(Script(ends=fails)), pytest.raises(FenceError):
        autotune.search("train.py", name="started")
    monkeypatch.setitem(vars(THIS_MACHINE), "make_rigs", fails)
    with pytest.raises(FenceError):
        autotune.search("train.py", name="not-started")
    assert [path.name for path in (workplace / ".autotune").iterdir() if path.is_dir()] == [
        "started"
    ]


def test_wrong_arguments_are_refused_by_name_and_leave_no_run_behind(workplace: Path) -> None:
    (workplace / "out").mkdir()
    (workplace / "a_file").touch()
    plain = PROGRAMS / "plain.py"
    for wrong, said in (
        ({}, "Give a program or a command"),
        ({"program": "fails.py", "command": "fails.py"}, "Give a program or a command"),
        ({"command": "uv run fails.py"}, "uv run autotune search -- fails.py"),
        ({"command": "python fails.py | tee log"}, "needs a shell"),
        ({"program": plain, "tune": ["nothing"]}, "Unknown setting"),
        ({"program": plain, "sampler": "rnadom"}, "Did you mean 'random'"),
        ({"program": plain, "max_global_batch": 0}, "takes a number of samples, not 0"),
        ({"program": "nowhere.py"}, "There is no program"),
        ({"program": 3}, "not 3"),
        ({"program": plain, "output": "out"}, "'out' cannot be written: it is a folder"),
        ({"program": plain, "output": "a_file/best.yaml"}, r"a_file' is not a folder\. Name"),
        ({"program": "missing.py", "output": "out/new/best.yaml"}, r"missing\.py"),
    ):
        with pytest.raises(UsageError, match=said):
            autotune.search(**wrong)
    assert sorted(path.name for path in workplace.iterdir()) == ["a_file", "out"]


def test_apply_as_first_line_of_a_script_applies_the_config(workplace: Path) -> None:
    with open_rig(workplace, "plain.py", "losses.rig") as opened:
        base = base_setting(opened.profile)
    write_best(
        workplace / "best.yaml", dict(base.baseline), loader=base.traits.loader, batch_size=64,
        threads=1,
    )  # fmt: skip
    text = (PROGRAMS / "plain.py").read_text()
    (workplace / "train.py").write_text(
        f'import autotune\nautotune.apply("best.yaml")\n{text}\n'
        "import sys, torch\nprint(torch.get_num_threads(), file=sys.stderr)\n"
    )
    for number, command in enumerate(([], ["-m", "autotune", "run", "best.yaml"])):
        done = subprocess.run(
            [sys.executable, *command, "train.py", f"losses.{number}", "1"],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert done.stderr.splitlines()[-1] == "1"
    applied = (workplace / "losses.0").read_text()
    # batch 64, half as many batches; the rate is doubled in steps, and the program shows its own
    samples, batches, lr, _ = applied.splitlines()[0].split()
    assert (int(samples), int(batches)) == (64, 32)
    assert 0.0099 < float(lr) < 0.01
    assert (workplace / "losses.1").read_text() == applied


APPLIED_LATE = """
import sys, torch, autotune
from torch.utils.data import DataLoader, TensorDataset, get_worker_info

def collate(items):
    return torch.stack([x for (x,) in items]), get_worker_info() is not None

loader = DataLoader(TensorDataset(torch.ones(64, 1)), batch_size=8, collate_fn=collate)
model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
autotune.apply(sys.argv[1])
for batch, by_worker in loader:
    model(batch).sum().backward()
    optimizer.step()
print(by_worker, optimizer.param_groups[0]["fused"])
"""


@pytest.mark.slow
def test_apply_reaches_what_is_built_already_but_gives_it_no_other_batch(workplace: Path) -> None:
    (workplace / "train.py").write_text(APPLIED_LATE)
    loader = make_loader(
        dataset="TensorDataset", dataset_len=64, batch_size=8, sampler="SequentialSampler"
    )
    as_written: dict[str, KnobValue] = {"workers": 0, "optimizer": "for-loop", "batch_size": 8}
    write_best(workplace / "best.yaml", as_written, loader, workers=1, optimizer="fused")
    write_best(workplace / "batch.yaml", as_written, loader, workers=1, batch_size=16)
    done, refused = (
        subprocess.run(
            [sys.executable, "train.py", name], capture_output=True, text=True, check=False
        )
        for name in ("best.yaml", "batch.yaml")
    )
    assert done.stdout == "True True\n", done.stderr
    assert "The DataLoader was built before batch.yaml was applied, too late" in refused.stderr


AGAIN = """
import argparse, sys, torch, autotune
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--batch-size", type=int, default=8)
size = parser.parse_args().batch_size
for fold in range(2):
    autotune.apply("best.yaml")
    model = torch.nn.Linear(1, 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    for (batch,) in DataLoader(TensorDataset(torch.ones(64, 1)), batch_size=size):
        optimizer.zero_grad()
        model(batch).mean().backward()
        optimizer.step()
    print(len(batch), model.weight.item())
autotune.apply("other.yaml")
"""


@pytest.mark.slow
def test_apply_acts_once_and_changes_no_command_line_that_was_read(workplace: Path) -> None:
    """Applied twice, it trained nothing; of a batch that was not typed, the rate alone acted."""
    (workplace / "train.py").write_text(AGAIN)
    loader = make_loader(
        dataset="TensorDataset", dataset_len=64, batch_size=8, sampler="SequentialSampler"
    )

    def done(*args: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "train.py", *args]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    write_best(workplace / "best.yaml", {"accumulation_steps": 1}, loader, accumulation_steps=2)
    write_best(workplace / "other.yaml", {"workers": 0}, loader, workers=1)
    accumulated = done()
    assert accumulated.stdout == "8 -2.0\n8 -2.0\n", accumulated.stderr
    assert "Another config was applied before other.yaml" in accumulated.stderr
    traits = ProgramTraits("cpu", loader, flags={"batch_size": Flag("--batch-size", value=8)})
    best = make_best(config={"batch_size": 16}, baseline={"batch_size": 8}, traits=traits)
    (workplace / "best.yaml").write_text(best.text(), encoding="utf-8")
    refused = done()
    assert "Type these: --batch-size=16." in refused.stderr
    assert not refused.stdout, "nothing is trained"
    assert done("--batch-size", "16").stdout == "16 -2.0\n16 -2.0\n"


def test_search_takes_and_explains_the_fields_of_a_request() -> None:
    taken = inspect.signature(autotune.search).parameters
    assert [*taken] == [*described(SearchRequest)]
    assert taken["budget"].default == "3m"
    doc = inspect.getdoc(autotune.search)
    assert doc is not None
    assert all(f"\n    {name}: " in doc for name in taken)
    with pytest.raises(TypeError, match="budgt"):
        autotune.search("train.py", budgt="3m")  # type: ignore[call-arg]


def test_a_search_logs_phases_and_gains(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    script = Script({"workers": {1: 1.5}})
    with caplog.at_level(logging.INFO, "autotune"):
        begin(tmp_path, script, {"workers": (0, 1, 2)}).go_on(180.0, api.Logged())
    places = [caplog.messages.index(phase) for phase in Phase]
    assert places == sorted(places)
    assert any(re.fullmatch(r"about 1\.\d+x  workers=1", said) for said in caplog.messages)


def test_resume_starts_nothing_that_the_record_asks_for_without_the_words(
    workplace: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (workplace / "train.py").write_text("")
    program = replace(parse_program("train.py", [], workplace), env={"LD_PRELOAD": "/evil.so"})
    fence = FenceOptions(FenceKind.GUARD)
    options = SearchOptions(180.0, fence=fence)
    space = SearchSpace("mine", {"workers": None, "$FLAVOUR": ("sweet", "sour")})
    head = SearchInfo(program, space, options, hardware.detect(), "2025-01-01T12:00:00+00:00")
    study = search_dir.new("the one", "train").create_study(head)
    # A config that is not of its space, as only a record has it that somebody wrote by hand
    odd, ratio = Config({"$PATH": "/evil"}), LogRatio(0.2, 0.01)
    study.claim = (ClaimProcess(odd, True, ratio, None, None, (1.0, 1.2), 9, 9.0),)
    started = list[FenceOptions]()

    def begin(_run: SearchDir, study: Study, *_: object, **_finish: object) -> None:
        study.release_lease()
        started.append(study.head.options.fence)
        raise BudgetError("it would start now")

    monkeypatch.setattr(api, "run_search", begin)
    line = ["resume", "the one"]
    words = "--fence guard --allow-env FLAVOUR,LD_PRELOAD,PATH"
    for given in ("", "--fence guard", "--allow-env LD_PRELOAD,PATH"):
        done = CliRunner().invoke(app, [*line, *given.split()])
        assert f"autotune resume 'the one' {words}" in " ".join(done.output.split()), done
    assert not started
    assert "it would start now" in CliRunner().invoke(app, [*line, *words.split()]).output
    own = "--fence overlay --allow-env FLAVOUR,LD_PRELOAD,PATH"
    assert "it would start now" in CliRunner().invoke(app, [*line, *own.split()]).output
    assert started == [fence, FenceOptions(FenceKind.OVERLAY)]
