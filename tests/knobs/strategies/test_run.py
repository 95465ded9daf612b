"""``autotune run`` with ranks: one program is heard, writes files, and saves plain checkpoints."""

import json
import os
import re
import subprocess
import sys
from itertools import takewhile
from pathlib import Path

import pytest
import torch
from torch import nn

from autotune.program.config import KnobValue
from tests.made import make_loader
from tests.rigging import PROGRAMS, free_port, run_command, write_best

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("warm_starts")]

AUTOTUNE = (sys.executable, "-m", "autotune")


def best_yaml(path: Path, strategy: str, ranks: int = 2) -> str:
    baseline: dict[str, KnobValue] = {"devices": "single", "batch_size": 16}
    loader = make_loader(dataset_len=200, batch_size=16)
    write_best(path, baseline, loader, devices=f"{strategy}-{ranks}")
    return str(path)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp", "zero1"])
def test_ranks_train_as_one_and_save_what_one_process_loads(tmp_path: Path, strategy: str) -> None:
    out = tmp_path / "out"
    done = run_command(
        "run", best_yaml(tmp_path / "best.yaml", strategy), str(PROGRAMS / "saves.py"), str(out)
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 1, "the first rank alone prints"
    best, loaded = lines[0].split(", ")[:2]
    assert best.removeprefix("best ") == loaded.removeprefix("loaded ")
    assert "7 batches" in lines[0], "each rank has half of 13 batches"
    assert done.stderr.count("epoch 2:   0%") == 1, "one progress bar"
    assert f"2 ranks train by {strategy}" in done.stderr
    written = {"best.pt", "copy.pt", "history.json", "log.txt"}
    assert {path.name for path in out.iterdir()} == written
    drawn = [path.read_text() for path in tmp_path.glob("drawn-*")]
    assert len(drawn) == 2
    assert len(set(drawn)) == 1, "all ranks split and number their data alike"
    assert len((out / "log.txt").read_text().splitlines()) == 3
    history = json.loads((out / "history.json").read_text())
    assert history[-1] < history[0], "it learns"
    _loads_into_one_process(out / "best.pt", min(history))


def _loads_into_one_process(path: Path, error: float) -> None:
    """Load a checkpoint as the script alone would, and find the error that was reported."""
    checkpoint = torch.load(path)
    model = nn.Sequential(nn.Linear(16, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 1))
    model.load_state_dict(checkpoint["model"])
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    optimizer.load_state_dict(checkpoint["optimizer"])
    assert len(optimizer.state) == len(list(model.parameters()))
    torch.manual_seed(0)
    features = torch.randn(200, 16)
    model.eval()
    with torch.no_grad():
        found = nn.functional.mse_loss(model(features).squeeze(1), features.sum(1)).item()
    assert found == pytest.approx(error, rel=1e-5)


def test_the_command_can_be_printed_and_typed(tmp_path: Path) -> None:
    best = best_yaml(tmp_path / "best.yaml", "ddp")
    done = run_command("run", "--print-command", best, str(PROGRAMS / "saves.py"), "out")
    assert done.returncode == 0, done.stderr
    command = done.stdout.strip()
    assert "-P -m autotune.rig.local_ranks --ranks 2 -- " in command
    assert command.endswith(f"-m autotune.inside.train {best} {PROGRAMS / 'saves.py'} out")
    # As a shell reads what was printed: variables first, then the words
    read = ["sh", "-c", f"printf '%s\\0' {command}"]
    *words, _ = subprocess.run(read, capture_output=True, text=True, check=True).stdout.split("\0")
    variables = [*takewhile(lambda word: re.match(r"\w+=", word), words)]
    typed = subprocess.run(
        words[len(variables) :],
        capture_output=True, text=True, cwd=tmp_path, check=False,
        env=os.environ | dict(word.split("=", 1) for word in variables),
    )  # fmt: skip
    assert typed.returncode == 0, typed.stderr
    assert (tmp_path / "out" / "best.pt").exists()


def test_two_launchers_train_as_two_nodes(tmp_path: Path) -> None:
    best = best_yaml(tmp_path / "best.yaml", "ddp", ranks=1)
    out = tmp_path / "out"
    port = free_port()
    nodes = []
    for number in (0, 1):
        options = ["--nnodes", "2", "--node-rank", str(number)]
        options += ["--rdzv-endpoint", f"localhost:{port}"]
        environment = {**os.environ, "AUTOTUNE_RANKS_KEY": "one secret of all nodes"}
        command = [*AUTOTUNE, "run", *options, best, str(PROGRAMS / "saves.py"), str(out)]
        nodes.append(
            subprocess.Popen(
                command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
            )
        )
    said = [node.communicate(timeout=120) for node in nodes]
    assert [node.returncode for node in nodes] == [0, 0], said
    assert "7 batches" in said[0][0]
    assert not said[1][0], "the first rank of the first node alone prints"
    assert "A step has 2 times the samples of a step in the search" in said[0][1]
    assert "whoever can reach that port can run code in this training" in said[0][1]
    assert "is not signed" not in said[0][1]
    assert (out / "best.pt").exists()
