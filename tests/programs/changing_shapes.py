"""Batches of another width in every step, as unpadded text gives them."""

import itertools

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(2048, 400, 4)), batch_size=16)
model = nn.Linear(4, 4, bias=False)  # matrix products alone: no C++ has to be compiled
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
widths = itertools.cycle(range(2, 400))
for _ in range(10_000):
    for (tokens,) in loader:
        optimizer.zero_grad()
        model(tokens[:, : next(widths)].contiguous()).square().mean().backward()
        optimizer.step()
