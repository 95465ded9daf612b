"""The program trains what it trains without autotune: as written, and under ``autotune run``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from autotune.measurement.outcome import Ending
from autotune.program.config import KnobValue
from autotune.results import bestfile
from tests.gpu_fakes import guard_cuda
from tests.made import make_loader
from tests.rigging import PROGRAMS, never, open_rig, write_best

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("warm_starts")]

STEPS = 20
EPOCHS = "2"
PROGRAM = PROGRAMS / "plain.py"
LOADER = make_loader(dataset_len=2048, batch_size=32)


# What the program does, and what autotune does instead; to the bit, or within rounding
SETTINGS: dict[str, tuple[dict[str, KnobValue], dict[str, KnobValue], bool]] = {
    "workers": ({"workers": 0, "prefetch_factor": 2}, {"workers": 2, "prefetch_factor": 4}, True),
    "spawned workers": (
        {"workers": 0, "worker_start_method": "fork"},
        {"workers": 1, "worker_start_method": "spawn"},
        True,
    ),
    "threads": ({"threads": 2}, {"threads": 1}, False),
    "optimizer": ({"optimizer": "for-loop"}, {"optimizer": "fused"}, False),
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """What the program writes by itself."""
    losses = tmp_path_factory.mktemp("plain") / "losses"
    subprocess.run([sys.executable, str(PROGRAM), str(losses), EPOCHS], check=True)
    return losses.read_text().splitlines()


def test_losses_are_bit_identical_under_the_seams_at_the_baseline_config(
    plain: list[str], tmp_path: Path
) -> None:
    with open_rig(tmp_path, "plain.py", str(tmp_path / "rig.losses"), EPOCHS) as opened:
        under_seams: list[str] = []
        while len(under_seams) <= STEPS:  # a slow machine makes few steps in a measurement
            opened.measured()
            under_seams = opened.seen(tmp_path / "rig.losses").read_text().splitlines()
    assert under_seams[:STEPS] == plain[:STEPS]


@pytest.mark.parametrize("name", SETTINGS)
def test_losses_under_autotune_run_are_those_of_the_program_alone(
    name: str, plain: list[str], tmp_path: Path
) -> None:
    baseline, changes, is_exact = SETTINGS[name]
    best, losses = tmp_path / "best.yaml", tmp_path / "losses"
    write_best(best, baseline, LOADER, "", "cpu", **changes)
    command = [sys.executable, "-m", "autotune", "run", str(best), str(PROGRAM)]
    ended = subprocess.run(
        [*command, str(losses), EPOCHS], check=True, capture_output=True, text=True
    )
    assert "no DataLoader here is the one that was tuned" not in ended.stderr
    written = losses.read_text().splitlines()
    if is_exact:
        assert written == plain
    own, theirs = ([float.fromhex(line.split()[-1]) for line in of] for of in (written, plain))
    assert own == pytest.approx(theirs, rel=1e-3)


SETS_UP = """
import os, sys, torch
from torch.utils.data import DataLoader, TensorDataset

if sys.argv[1].endswith(".yaml"):
    import autotune
    autotune.apply(sys.argv[1])
loader = DataLoader(TensorDataset(torch.ones(64, 1)), batch_size=8, shuffle=True)
model = torch.nn.Sequential(torch.nn.Conv1d(1, 1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
if sys.argv[2] == "cuda":
    os.environ["CUDA_VISIBLE_DEVICES"] = "1"
    os.environ["CUDA_IS_ASKED"] = "1"
    torch.cuda.is_available()
for _ in range(int(sys.argv[3])):
    for (batch,) in loader:
        optimizer.zero_grad()
        model(batch[:, None]).sum().backward()
        optimizer.step()
print("trained")
"""
# What a search begins with, and what it may find
FOUND: dict[str, tuple[dict[str, KnobValue], dict[str, KnobValue]]] = {
    "cpu": ({"threads": 2, "workers": 0}, {"threads": 1, "workers": 1}),
    "cuda": (
        {
            "precision": "fp32",
            "cudnn": "default",
            "attention": "auto",
            "pinning": "off",
            "optimizer": "for-loop",
            "memory_format": "contiguous",
            "workers": 0,
        },
        {
            "precision": "tf32",
            "cudnn": "benchmark",
            "attention": "math",
            "pinning": "non-blocking",
            "optimizer": "foreach",
            "memory_format": "channels_last",
            "workers": 1,
        },
    ),
}


@pytest.mark.real_starts
@pytest.mark.parametrize(
    ("how", "device"),  # the command applies a file as apply() does
    [("search", "cpu"), ("search", "cuda"), ("run", "cpu"), ("run", "cuda"), ("apply", "cuda")],
)
def test_nothing_asks_for_gpus_before_the_program_does(
    how: str, device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first who asks fixes what the program sees: later CUDA_VISIBLE_DEVICES are not read.

    torch then also keeps forked processes from using CUDA, whether there are GPUs or not. A program
    on the CPU may never ask.
    """
    program, best = tmp_path / "sets_up.py", tmp_path / "best.yaml"
    program.write_text(SETS_UP, encoding="utf-8")
    baseline, changes = FOUND[device]
    write_best(best, baseline, make_loader(dataset_len=64, batch_size=8), "", device, **changes)
    asked = guard_cuda(monkeypatch, tmp_path)
    if how == "search":
        with open_rig(tmp_path, str(program), "as written", device, "1000000") as observed:
            observed.measured(workers=1)
            found = observed.rig.profile_step(0.2, never, 60.0)
            assert not isinstance(found, Ending)
            assert not isinstance(observed.rig.examine(never, 60.0), Ending)
            assert_not_there(observed.seen(asked))
        applied = bestfile.read(best).applied
        words = str(program), "as written", device, "1000000"
        with open_rig(tmp_path / "tuned", *words, applied=applied) as tuned:
            tuned.measured()
            assert_not_there(tuned.seen(asked))
    else:
        tool = ["-m", "autotune", "run", str(best)] if how == "run" else []
        file = "as written" if how == "run" else str(best)
        ended = subprocess.run(
            [sys.executable, *tool, str(program), file, device, "3"],
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert ended.stdout.endswith("trained\n"), ended.stderr
    assert_not_there(asked)


def assert_not_there(asked: Path) -> None:
    assert not asked.exists(), asked.read_text()
