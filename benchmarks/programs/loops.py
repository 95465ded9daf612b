"""Three training loops for `overhead`: launch-bound, with workers, and a transformer.

Each ``make_*`` returns a function that trains some steps and returns their seconds per step, by its
own clock. ``amp`` trains under bf16 autocast as its users write it by hand.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from itertools import islice
from time import perf_counter
from typing import Protocol

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

SKIPPED = 0.25  # of the steps: workers start, caches fill


class Train(Protocol):
    """Trains so many steps and returns seconds per step."""

    def __call__(self, steps: int, *, amp: bool) -> float:
        """Train."""


def make_mlp() -> Train:
    """Steps of 1-2 ms on two cores, most of it Python and launching operators."""
    data = TensorDataset(torch.randn(65_536, 64), torch.randint(10, (65_536,)))
    layers = [layer for _ in range(8) for layer in (nn.Linear(64, 64), nn.ReLU())]
    model = nn.Sequential(*layers, nn.Linear(64, 10))
    return _loop(DataLoader(data, batch_size=16, shuffle=True), model)


def make_cnn() -> Train:
    """A worker loads; steps of some tens of milliseconds."""
    data = TensorDataset(torch.randn(4096, 3, 32, 32), torch.randint(10, (4096,)))
    model = nn.Sequential(
        nn.Conv2d(3, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )
    return _loop(DataLoader(data, batch_size=32, shuffle=True, num_workers=1), model)


def make_gpt() -> Train:
    """A small transformer on token ids."""
    data = TensorDataset(torch.randint(256, (2048, 64)), torch.randint(256, (2048,)))

    class Last(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x[:, -1]

    block = nn.TransformerEncoderLayer(128, 4, 256, batch_first=True, dropout=0.0)
    model = nn.Sequential(
        nn.Embedding(256, 128), nn.TransformerEncoder(block, 2), Last(), nn.Linear(128, 256)
    )
    return _loop(DataLoader(data, batch_size=16, shuffle=True), model)


def _loop(loader: DataLoader[tuple[Tensor, ...]], model: nn.Module) -> Train:
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def train(steps: int, *, amp: bool) -> float:
        skipped, began = round(SKIPPED * steps), 0.0
        for number, (x, y) in enumerate(islice(_endless(loader), steps)):
            if number == skipped:
                began = perf_counter()
            with torch.autocast("cpu", torch.bfloat16) if amp else nullcontext():
                output = model(x)
            loss = cross_entropy(output.float(), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        return (perf_counter() - began) / (steps - skipped)

    return train


def _endless(loader: DataLoader[tuple[Tensor, ...]]) -> Iterator[tuple[Tensor, ...]]:
    while True:
        yield from loader
