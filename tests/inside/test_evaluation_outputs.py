"""What a config changes in the outputs of evaluation is seen, on the same weights and batches."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from autotune.program.config import KnobValue
from autotune.program.evaluation import EvaluationOutputs
from autotune.program.rehearsal import RehearsalPlan
from tests.inside.test_short_epochs import applied_of, run

PROGRAM = """
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
data = TensorDataset(torch.randn(64, 3, 8, 8), torch.arange(64) % 3)
train, valid = DataLoader(data, batch_size=16), DataLoader(data, batch_size=8)
model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.ReLU(), nn.Flatten(), nn.Dropout(), nn.Linear(288, 3))
optimizer = torch.optim.SGD(model.parameters(), 0.1)
for epoch in range(3):
    model.train()
    for x, y in train:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    model.eval()
    with torch.inference_mode():
        for x, y in valid:
            out = model(x)
    weights = [p.detach().clone() for p in model.parameters()]
torch.save(weights, "weights.pt")
torch.save(torch.rand(1), "drawn.pt")
"""


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()
    yield
    torch.set_num_threads(threads)
    gc.collect()


def outputs_under(folder: Path, **changes: KnobValue) -> EvaluationOutputs | None:
    program = folder / "evaluates.py"
    program.write_text(PROGRAM, encoding="utf-8")
    plan = RehearsalPlan(enough_s=60.0, pass_s=60.0)
    found = run(str(program), "", plan, applied_of(**changes))
    assert found.has_passed, found
    assert found.seen is not None
    return found.seen.outputs


def test_a_coarser_precision_is_seen_in_the_outputs_and_explained(tmp_path: Path) -> None:
    found = outputs_under(tmp_path, precision="bf16", channels_last=True)
    assert found is not None
    assert found.changes == {"precision": "bf16", "channels_last": True}
    assert 1e-4 < found.apart < found.explained
    assert found.batches == 2
    assert "precision=bf16 channels_last=True differ by" in str(found)
    assert str(found).endswith("as rounding explains")


def test_comparing_outputs_changes_neither_the_training_nor_its_random_numbers(
    tmp_path: Path,
) -> None:
    assert outputs_under(tmp_path) is None, "as written, there is nothing to compare"
    own = torch.load("weights.pt"), torch.load("drawn.pt")
    found = outputs_under(tmp_path, channels_last=True)
    assert found is not None
    assert found.apart < 1e-5
    weights, drawn = torch.load("weights.pt"), torch.load("drawn.pt")
    torch.testing.assert_close(weights, own[0])
    assert drawn == own[1]


def test_outputs_that_rounding_does_not_explain_are_told() -> None:
    said = str(EvaluationOutputs({"sdpa_backend": "math"}, 0.2, 1e-4, 2))
    assert "differ by 20 % from those as written, more than rounding explains (0.01 %)" in said
