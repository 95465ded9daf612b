"""By hand: the diff of the user's program holds what is certain, and the rest is said."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.exports.by_hand import ByHand, by_hand
from autotune.program.config import Config, KnobValue
from autotune.program.flags import Flag
from autotune.program.profile import OptimizerFacts
from autotune.program.program import Program, ProgramKind, parse_program
from autotune.program.sources import digest_of
from autotune.results.record import BaselineInfo
from tests.made import PROFILE, make_applied, make_head, make_loader, make_space
from tests.results.test_result import make_result

BEFORE: dict[str, KnobValue] = {
    "workers": 0, "pinning": "off", "threads": 2, "batch_size": 8, "precision": "fp32",
    "memory_format": "contiguous", "optimizer": "for-loop", "compile": "off",
    "prefetch_factor": 2, "attention": "auto", "keep_freed_memory": False, "accumulation_steps": 1,
    "worker_start_method": "fork",
}  # fmt: skip
SGD = OptimizerFacts("SGD", ("SGD", "Optimizer"), (0.1,))

TRAINS = """\
import sys

import torch
from torch.utils.data import DataLoader, TensorDataset

# as people write it
data = TensorDataset(torch.rand(64, 3, 8, 8), torch.rand(64))


def train(model, loader, optimizer, device="cpu"):
    model.train()
    for images, labels in loader:
        images = images.to(device)
        output = model(images)
        loss = (output.flatten() - labels).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return loss


test_loader = DataLoader(data, batch_size=8)
loader = DataLoader(
    data,
    batch_size=8,
    shuffle=True,  # each epoch
)
model = torch.nn.Sequential(torch.nn.Conv2d(3, 1, 8))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
train(model, loader, optimizer)
"""
SHOWS = """
print(loader.num_workers, loader.persistent_workers, loader.batch_size, test_loader.num_workers)
print(torch.get_num_threads(), optimizer.defaults["lr"], optimizer.defaults["foreach"])
print(model[0].weight.is_contiguous(memory_format=torch.channels_last))
"""


def searched(
    folder: Path, text: str, flags: dict[str, Flag] | None = None, **changes: KnobValue
) -> Any:
    """Return what a search of a script found that recommends some changes."""
    (folder / "train.py").write_bytes(text.encode())
    head = replace(
        make_head(make_space(list(BEFORE))), program=parse_program("train.py", (), folder)
    )
    best, baseline = Config({**BEFORE, **changes}), Config(BEFORE)
    loader = make_loader(batch_size=8)
    applied = make_applied(best, baseline=baseline, optimizers=(SGD,), loader=loader)
    applied = replace(applied, traits=replace(applied.traits, flags=flags or {}))
    return replace(make_result({}), head=head, best=best, baseline=baseline, applied=applied)


def patched(folder: Path, made: ByHand, tool: str) -> str:
    """Return the script as a tool leaves it that applies the diff."""
    command = {"git": ["git", "apply", "-"], "patch": ["patch", "-p1", "--silent"]}[tool]
    subprocess.run(command, cwd=folder, input=made.diff.encode(), check=True)
    return (folder / "train.py").read_bytes().decode()


@pytest.mark.usefixtures("warm_starts")
def test_a_program_with_the_diff_trains_with_what_was_found(tmp_path: Path) -> None:
    result = searched(
        tmp_path, TRAINS + SHOWS, workers=1, threads=1, precision="bf16",
        memory_format="channels_last", optimizer="foreach",
    )  # fmt: skip
    made = by_hand(result)
    assert not made.rest
    assert "under autocast" in " ".join(made.notes)
    text = patched(tmp_path, made, "git")
    assert "    shuffle=True, num_workers=1, persistent_workers=True,  # each epoch" in text
    assert '        with torch.autocast("cpu", dtype=torch.bfloat16):\n            output' in text
    assert "\n            loss = (output" in text
    assert "\n        optimizer.zero_grad()" in text
    done = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    assert done.stdout.split() == ["1", "True", "8", "0", "1", "0.1", "True", "True"]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_what_is_not_changed_keeps_its_bytes(tmp_path: Path, end: str) -> None:
    text = TRAINS.replace("\n", end).rstrip() + "  # é: no end of line"
    made = by_hand(searched(tmp_path, text, workers=1, threads=1, compile="default"))
    after = patched(tmp_path, made, "patch")
    before, now = text.split(end), after.split(end)
    assert [one for one in before if one not in now] == ["    shuffle=True,  # each epoch"]
    assert now[-1] == before[-1]
    assert "    shuffle=True, num_workers=1, persistent_workers=True,  # each epoch" in now
    assert 'model.compile(mode="default")' in now
    assert after.count("\r") == after.count("\n") * (end == "\r\n")


def test_what_is_not_certain_is_said_and_never_guessed(tmp_path: Path) -> None:
    twice = TRAINS.replace("test_loader = DataLoader(data, batch_size=8)", "test_loader = loader")
    alike = twice.replace(
        "model = ", "loader_b = DataLoader(data, batch_size=8, shuffle=True)\nmodel = "
    )
    found: dict[str, tuple[str, dict[str, KnobValue], str]] = {
        "two loaders": (alike, {"workers": 1}, "2 calls of DataLoader may be meant: train.py:2"),
        "none": (TRAINS.replace("DataLoader(", "made("), {"workers": 1}, "no call of DataLoader"),
        "open": (
            twice.replace("    data,\n", "    data, **options,\n"),
            {"workers": 1}, "takes * or ** arguments",
        ),
        "by place": (
            twice.replace("    batch_size=8,\n    shuffle=True,", "    8, True, None, None, 0,"),
            {"workers": 1}, "num_workers is given by its place",
        ),
        "other optimizer": (
            TRAINS.replace("optim.SGD", "optim.Adam"), {"optimizer": "fused"}, "no call of SGD",
        ),
        "no model": (
            TRAINS.replace("model.parameters()", "groups"),
            {"compile": "default"}, "not made of one whole model's parameters()",
        ),
        "one call": (
            TRAINS.replace("output = model(images)", "output = forward(images)"),
            {"precision": "bf16"}, "no call of the model was found before train.py:17",
        ),
        "two losses": (
            TRAINS + "\nloss.backward()\n", {"precision": "bf16"}, "2 calls of backward",
        ),
        "scaler": (TRAINS, {"precision": "fp16"}, "GradScaler"),
        "not a line": (TRAINS, {"attention": "flash"}, "it is no single line"),
        "malloc": (TRAINS, {"keep_freed_memory": True}, "MALLOC_MMAP_MAX_=0"),
        "one line": (
            TRAINS.replace("optimizer = torch", "x = 1; optimizer = torch"),
            {"compile": "default"}, "shares its line",
        ),
        "other name": (
            TRAINS.replace("import sys", "from torch.utils.data import DataLoader as Mine"),
            {"workers": 1}, "DataLoader has another name at train.py:1",
        ),
        "loaders in a dict": (
            twice.replace("loader = DataLoader(", "loaders = lambda data: DataLoader("),
            {"workers": 1}, "may make several",
        ),
        "a function of loaders": (
            twice.replace("loader = D", "def made():\n  return D") + "made()\nmade()\n",
            {"workers": 1}, "may make several",
        ),
        "a part": (
            TRAINS.replace("(model.parameters", "(model.head.parameters"),
            {"compile": "default"}, "not made of one whole model's",
        ),
        "set later": (
            TRAINS + "torch.set_num_threads(4)\n", {"threads": 1}, ":31 sets set_num_threads, too",
        ),
        "shared end": (
            TRAINS.replace(".mean()\n        optim", ".mean(); optim"),
            {"precision": "bf16"}, "cannot be indented",
        ),
        "a batch": (TRAINS, {"batch_size": 16}, "batch_size=16  together with the learning rate"),
        "a rate": (TRAINS, {"batch_size": 16}, "learning rate lr * 2 where the optimizer or a sch"),
        "copies": (TRAINS, {"pinning": "non-blocking"}, "copies non_blocking=True where a batch"),
    }  # fmt: skip
    for name, (text, changes, why) in found.items():
        made = by_hand(searched(tmp_path, text, None, **changes))
        said = " | ".join(f"{one.setting} {one.line} {one.where}" for one in made.rest)
        assert why in said, (name, said)
        assert not made.diff or name == "copies", (name, made.diff)
    result = searched(tmp_path, TRAINS, optimizer="fused")
    traits = replace(result.applied.traits, trainer="transformers")
    (own,) = by_hand(replace(result, applied=replace(result.applied, traits=traits))).rest
    assert own.where.endswith("a setting for it: autotune export --to hf")


def test_flags_of_torch_stand_below_the_imports_and_above_all_code(tmp_path: Path) -> None:
    text = TRAINS.replace("import torch\n", "").replace("def train(", "import os\n\n\ndef train(")
    late = f"{text}\nimport this_is_late\n"
    diff = by_hand(searched(tmp_path, late, threads=1)).diff
    assert " import os\n+import torch\n+\n+torch.set_num_threads(1)\n" in diff


def test_what_is_written_otherwise_goes_or_is_said(tmp_path: Path) -> None:
    text = TRAINS.replace(
        "0.1)\ntrain(", "lr=0.1, fused=True)\nmodel = torch.compile(model)\ntrain("
    )
    result = searched(tmp_path, text, optimizer="foreach", compile="max-autotune")
    baseline = Config({**BEFORE, "optimizer": "fused", "compile": "default"})
    made = by_hand(replace(result, baseline=baseline))
    assert "lr=0.1, fused=None, foreach=True)" in made.diff, "torch takes one of them"
    (own,) = made.rest
    assert own.where == "compile=default is written in the program and has to go"


def test_torch_is_imported_by_its_name_where_a_line_uses_it(tmp_path: Path) -> None:
    text = TRAINS.replace("import torch\n", "from torch import nn, optim, rand\n")
    text = text.replace("torch.nn", "nn").replace("torch.optim", "optim")
    made = by_hand(searched(tmp_path, text.replace("torch.rand", "rand"), precision="bf16"))
    assert not made.rest
    assert made.diff.count("+import torch\n") == 1


def test_a_setting_of_the_command_line_is_said_as_it_is_typed(tmp_path: Path) -> None:
    flags = {"workers": Flag("--num-workers", value=0, takes="int")}
    result = searched(tmp_path, TRAINS, flags, workers=4)
    result = replace(result, best=result.best.replace(**{"$OMP_PROC_BIND": "true", "--depth": 3}))
    made = by_hand(result)
    assert not made.diff
    assert {(one.line, one.where) for one in made.rest} == {
        ("--num-workers 4", "on the command line"),
        ("OMP_PROC_BIND=true", "in front of the command"),
        ("--depth 3", "on the command line"),
    }


def test_a_loader_without_workers_takes_no_options_of_workers(tmp_path: Path) -> None:
    text = TRAINS.replace(
        "    shuffle=True,", "    shuffle=True, num_workers=2, prefetch_factor=4,"
    )
    result = searched(tmp_path, text)
    facts = make_loader(batch_size=8, num_workers=2, prefetch_factor=4)
    applied = replace(result.applied, traits=replace(result.applied.traits, loader=facts))
    baseline = Config({**BEFORE, "workers": 2})
    diff = by_hand(replace(result, applied=applied, baseline=baseline)).diff
    assert "+    shuffle=True, num_workers=0, prefetch_factor=None," in diff


def test_a_program_that_is_not_the_searched_one_gets_no_diff(tmp_path: Path) -> None:
    result = searched(tmp_path, TRAINS, workers=1)
    (tmp_path / "train.py").write_text(TRAINS + "\n# edited\n")
    (edited,) = by_hand(result).rest
    assert "train.py is not as the search saw it" in edited.where
    assert edited.line == "num_workers=1, persistent_workers=True"
    pickled: Program = replace(
        result.head.program, kind=ProgramKind.PICKLED_FUNCTION, source=str(Path())
    )
    (function,) = by_hand(replace(result, head=replace(result.head, program=pickled))).rest
    assert "the function has no file" in function.where


def test_a_loader_is_also_found_in_a_file_that_the_script_imports(tmp_path: Path) -> None:
    loader = TRAINS[TRAINS.index("loader = DataLoader(\n") : TRAINS.index("model = ")]
    script = TRAINS.replace(loader, "from data.made import loader\n")
    result = searched(tmp_path, script, workers=1)
    path = tmp_path / "data" / "made.py"
    path.parent.mkdir()
    path.write_text(f"from torch.utils.data import DataLoader\n\ndata = []\n{loader}")
    files = {str(path): digest_of(path), "/elsewhere.py": "0"}
    made = by_hand(replace(result, facts=BaselineInfo(PROFILE, 4.0, 0.01, files=files)))
    assert not made.rest
    assert "--- a/data/made.py\n+++ b/data/made.py\n" in made.diff
