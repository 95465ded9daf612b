"""A checkpoint that is saved under a config loads in the plain script, and back.

For each setting that acts on a CPU without ranks; those of ranks are in
``tests/knobs/strategies/test_exactness.py``.
"""

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import AdamW
from torch.utils.data import DataLoader, TensorDataset

from autotune.inside.steering import install
from autotune.knobs.space.spacefile import load
from autotune.program.applied_config import AppliedConfig, ProgramTraits
from autotune.program.profile import OptimizerFacts
from tests.made import make_hardware, make_loader, make_profile

SAMPLES, BATCH, EPOCHS = 24, 4, 2
LOADER = make_loader(dataset_len=SAMPLES, batch_size=BATCH)
OPTIMIZER = OptimizerFacts(
    "AdamW", ("AdamW", "Adam"), (0.01,), implementations=("foreach", "fused")
)
# The space of a larger data set, where more is offered
PROFILE = make_profile(
    loaders=(make_loader(batch_size=BATCH),), optimizers=(OPTIMIZER,), repeated_blocks=3
)
SPACE = load("full").resolve(make_hardware(), PROFILE)
OTHERS = {
    name: [value for value in domain.values if value != SPACE.baseline[name]][-1]
    for name, domain in SPACE.domains.items()
    if len(domain.values) > 1 and name != "devices"
}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.relu(self.norm(self.conv(x)))


def trained(applied: AppliedConfig | None, path: Path, resumed: Path | None = None) -> None:
    """Train as a script would that resumes from a checkpoint if it has one; save the next one."""
    seams = None if applied is None else install(applied)
    try:
        compiles = applied is not None and applied.config.get("compile") != "off"
        # What is compiled is not computed here, which would take half a minute
        with torch.compiler.set_stance("force_eager") if compiles else nullcontext():
            _train(path, resumed)
    finally:
        if seams is not None:
            seams.remove()


def _train(path: Path, resumed: Path | None) -> None:
    torch.manual_seed(0)
    images = torch.randn(SAMPLES, 4, 6, 6)
    loader = DataLoader(TensorDataset(images, images.mean((1, 2, 3))), BATCH, shuffle=True)
    model = nn.Sequential(Block(), Block(), Block(), nn.Flatten(), nn.Linear(144, 1))
    optimizer = AdamW(model.parameters(), lr=0.01)
    if resumed is not None:
        saved = torch.load(resumed)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
    for _ in range(EPOCHS):
        for x, y in loader:
            loss = nn.functional.mse_loss(model(x).squeeze(1), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, path)


def shapes(saved: Any) -> Any:
    """Return what a checkpoint is made of, without its numbers."""
    if isinstance(saved, dict):
        return {key: shapes(value) for key, value in saved.items()}
    if isinstance(saved, torch.Tensor):
        return type(saved), saved.dtype, saved.shape
    return [shapes(one) for one in saved] if isinstance(saved, list) else type(saved)


@pytest.mark.parametrize("name", OTHERS)
def test_what_is_saved_under_a_setting_loads_without_it_and_back(name: str, tmp_path: Path) -> None:
    config = SPACE.baseline.replace(**{name: OTHERS[name]})
    traits = ProgramTraits("cpu", LOADER, optimizers=(OPTIMIZER,))
    applied = AppliedConfig(config, SPACE.baseline, traits)
    under, plain, again = (tmp_path / f"{file}.pt" for file in ("under", "plain", "again"))
    trained(applied, under)
    trained(None, plain, resumed=under)
    trained(applied, again, resumed=plain)
    made = [torch.load(path) for path in (under, plain, again)]
    assert shapes(made[0]) == shapes(made[1]) == shapes(made[2])
    steps = [float(one["optimizer"]["state"][0]["step"]) for one in made]
    assert 0 < steps[0] < steps[1] < steps[2], "each goes on where the other has stopped"
    weights = [one["model"]["4.weight"] for one in made]
    assert not torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[1], weights[2])
