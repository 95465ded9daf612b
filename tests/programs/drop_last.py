"""Leaves out the last batch of an epoch, and insists that all are whole and as many as promised."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(1030, 8)), batch_size=16, drop_last=True)
model = nn.BatchNorm1d(8)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(10_000):
    sizes = set()
    for (x,) in loader:
        sizes.add(len(x))
        if any(size & (size - 1) for size in sizes):
            raise SystemExit(f"a batch was not whole: {sizes}")
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
