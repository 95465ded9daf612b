"""Runs cases of training on the ranks that are started; the first rank writes what came out.

``python -m tests.knobs.strategies.together OUT CASE...``, once on each rank; without a launcher,
alone.
"""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import distributed, nn
from torch.distributed import PrefixStore  # type: ignore[attr-defined]
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.utils.data import DataLoader, TensorDataset

from autotune.inside.ranks.exchange import SignedStore
from autotune.inside.ranks.group import ALONE, Group, join, stand_alone
from autotune.inside.seam_set import SeamSet
from autotune.inside.steering import Steering
from autotune.program.applied_config import AppliedConfig, ProgramTraits
from autotune.program.config import Config, KnobValue
from tests.made import make_applied, make_loader

SAMPLES, BATCH = 90, 32  # three batches in an epoch, the last one smaller
EPOCHS = 5  # 15 steps
BASELINE: dict[str, KnobValue] = {
    "batch_size": BATCH,
    "accumulation_steps": 1,
    "devices": "single",
}


@dataclass(frozen=True)
class Case:
    """What a program does, and its config; the global batch is always that of the program."""

    strategy: str
    optimizer: str = "sgd"
    style: str = "plain"
    accumulation_steps: int = 1

    def __str__(self) -> str:
        return f"{self.strategy}-{self.optimizer}-{self.style}-{self.accumulation_steps}"

    @property
    def alone(self) -> Case:
        """The same program on one rank, as it is written."""
        return replace(self, strategy="single", accumulation_steps=1)


def case_of(text: str) -> Case:
    strategy, optimizer, style, steps = text.split("-")
    return Case(strategy, optimizer, style, int(steps))


class Block(nn.Module):
    """A part of the model that comes several times."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.linear(x))


class Net(nn.Module):
    """Blocks between two layers; some parameters are used by no step, or by none of its modules."""

    def __init__(self, style: str) -> None:
        super().__init__()
        self.first = nn.Linear(6, 8)
        self.blocks = nn.ModuleList(Block(8) for _ in range(3))
        self.norm = nn.BatchNorm1d(8) if style in {"batchnorm", "halves"} else nn.Identity()
        self.last = nn.Linear(8, 1)
        if style == "unused":
            self.never = nn.Linear(3, 3)
        if style in {"frozen", "frozen in optimizer", "thawed"}:
            self.first.requires_grad_(requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return torch.as_tensor(self.last(self.norm(x)))


def program(case: Case) -> dict[str, Any]:  # noqa: C901, PLR0912 - the many ways to write a loop
    """Train for some steps as a script would; return what it ends with."""
    torch.manual_seed(0)
    x = torch.randn(SAMPLES, 6, dtype=torch.float64)
    data = TensorDataset(x, x.sum(1, keepdim=True).sin())
    loader = DataLoader(data, batch_size=BATCH, shuffle=True)
    net = Net(case.style).double()
    model: nn.Module = nn.DataParallel(net) if case.style == "data parallel" else net
    outside = nn.Parameter(torch.ones(1, dtype=torch.float64))  # of no module at all
    trained = list(model.parameters())
    if case.style != "frozen in optimizer":
        trained = [p for p in trained if p.requires_grad]
    trained += [outside] if case.style.startswith(("outside", "drifts")) else []
    optimizer = optimizer_of(case.optimizer, trained)
    schedule: ReduceLROnPlateau | None = None
    if case.style == "plateau":  # it lowers the rate whenever a loss is not the best so far
        schedule = ReduceLROnPlateau(optimizer, factor=0.9, patience=0, threshold=0.0)
    norms = []
    twin = DataLoader(data, batch_size=BATCH, shuffle=True)  # of the same facts
    metrics = []
    for epoch in range(12 if case.style == "drifts" else EPOCHS):
        if case.style == "drifts" and epoch > 2:  # each rank draws otherwise
            outside.data += torch.rand(1)
        if epoch == 3:
            optimizer = second_phase(case.style, net, optimizer, trained)
        for features, labels in loader:
            if case.style == "closure":
                optimizer.step(lambda: backward(model, optimizer, features, labels))  # noqa: B023
                continue
            output = model(features) if case.style != "halves" else by_halves(model, features)
            if case.style.startswith(("outside", "drifts")):
                output = output * outside
            loss = nn.functional.mse_loss(output, labels)
            if case.style == "overflows" and (features == x.max()).any():  # on one of the ranks
                loss = loss * torch.inf
            if case.style != "late clearing":
                optimizer.zero_grad()
            loss.backward()
            if case.style.endswith("clipping"):
                norm = nn.utils.clip_grad_norm_(trained, 0.1)
                norms.append(float(norm))
            optimizer.step()
            if case.style == "late clearing":
                optimizer.zero_grad()
            if schedule is not None:
                schedule.step(loss.item())
        if case.style == "twin":
            metrics += [len(twin), evaluated(model, twin), evaluated(model, loader)]
    return {
        "weights": model.state_dict(),
        "outside": outside.detach(),
        "optimizer": optimizer.state_dict(),
        "norms": norms,
        "metrics": metrics,
        "lr": optimizer.param_groups[0]["lr"],
    }


def evaluated(model: nn.Module, loader: DataLoader[Any]) -> float:
    """Return a mean over batches of sums, as scripts report them."""
    with torch.no_grad():
        errors = [(model(x) - y).square().sum().item() for x, y in loader]
    return float(sum(errors) / len(loader))


def second_phase(
    style: str, model: Net, optimizer: Optimizer, first: list[nn.Parameter]
) -> Optimizer:
    """Return the optimizer that goes on; *first* are the parameters as they were at first."""
    if style == "thawed":
        model.first.requires_grad_(requires_grad=True)
        optimizer.add_param_group({"params": list(model.first.parameters())})
    if style == "two phases":
        with torch.no_grad():
            model(torch.zeros(2, 6, dtype=torch.float64))
        return AdamW(model.parameters(), lr=0.003)
    return AdamW(first, lr=0.003) if style == "two phases of a list" else optimizer


def by_halves(model: nn.Module, features: torch.Tensor) -> torch.Tensor:
    """Call a model on what each of two ranks would have."""
    output = torch.empty(len(features), 1, dtype=features.dtype)
    output[0::2], output[1::2] = model(features[0::2]), model(features[1::2])
    return output


class ByNorm(SGD):
    """A step whose length is a norm over all of its parameters', as some for large batches do."""

    def step(self, closure: Any = None) -> Any:
        grads = [p.grad for group in self.param_groups for p in group["params"]]
        norm = sum(grad.pow(2).sum() for grad in grads) ** 0.5
        for grad in grads:
            grad.mul_(1 / (1 + norm))
        return super().step(closure)


def optimizer_of(name: str, trained: list[nn.Parameter]) -> Optimizer:
    if name == "sgd":
        return SGD(trained, lr=0.05, momentum=0.9, weight_decay=1e-3)
    return AdamW(trained, lr=0.01)


def backward(
    model: nn.Module, optimizer: Optimizer, features: torch.Tensor, labels: torch.Tensor
) -> float:
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(features), labels)
    loss.backward()
    return loss.item()


def applied(case: Case, world_size: int) -> AppliedConfig:
    """Return the setting under which a step has as many samples as the program's own."""
    changes: dict[str, KnobValue] = {
        "devices": "single" if case.strategy == "single" else f"{case.strategy}-{world_size}",
        "accumulation_steps": case.accumulation_steps,
        "batch_size": BATCH // world_size // case.accumulation_steps,
    }
    loader = make_loader(dataset_len=SAMPLES, batch_size=BATCH)
    return make_applied({**BASELINE, **changes}, baseline=Config(BASELINE), loader=loader)


def run(case: Case, group: Group) -> dict[str, Any]:
    its = applied(case, group.world_size)
    seams = SeamSet(None, its.traits.loader, group=group)
    Steering(seams).apply(its)
    seams.steps.scaling.set_enabled(enabled=case.style == "overflows")
    seams.install()
    try:
        result = program(case)
        result["scale"] = seams.steps.scaling.scale
        result["every rank's"] = [None] * group.world_size
        if group.world_size > 1:
            weights = {n: w.tolist() for n, w in result["weights"].items() if "norm" not in n}
            distributed.all_gather_object(result["every rank's"], weights)
    finally:
        seams.remove()
    return result


def main(out: str, *names: str) -> None:
    """Run cases one after the other; each has keys of its own in the store."""
    group = join(os.environ)
    stand_alone(group, ProgramTraits("cpu"))
    results = {}
    for name in names:
        case = case_of(name)
        apart = replace(group, shared=SignedStore(PrefixStore(name, group.store.plain), name))
        try:
            results[name] = run(case, apart)
        except RuntimeError as error:
            results[name] = {"error": str(error)}
    if group.is_first:
        torch.save(results, out)
    group.leave()


def alone(case: Case) -> dict[str, Any]:
    """Run the program of a case in this process, as it is written."""
    return run(case.alone, ALONE)


if __name__ == "__main__":
    main(*sys.argv[1:])
