"""Trains by SGD on a loss that sums over its samples, or on their mean; writes how far steps go."""

from __future__ import annotations

import sys

import torch
from torch import nn
from torch.optim import SGD
from torch.utils.data import DataLoader, TensorDataset


def main(reduction: str, out: str) -> None:
    torch.manual_seed(0)
    x = torch.randn(4096, 8)
    data = TensorDataset(x, x.sum(1, keepdim=True) + torch.randn(4096, 1))
    loader = DataLoader(data, batch_size=32, shuffle=True)
    model = nn.Linear(8, 1)
    loss_of = nn.MSELoss(reduction=reduction)
    optimizer = SGD(model.parameters(), lr=1e-6 if reduction == "sum" else 32e-6)
    with open(out, "w", buffering=1) as file:
        for _ in range(100):
            for inputs, targets in loader:
                optimizer.zero_grad()
                loss = loss_of(model(inputs), targets)
                loss.backward()
                before = model.weight.detach().double()
                optimizer.step()
                moved = model.weight.detach().double() - before
                gradient = model.weight.grad.double()  # of one value alone, rounding may be most
                length = float((moved * gradient).sum() / (gradient * gradient).sum())
                file.write(f"{len(inputs)} {-length:.9f}\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
