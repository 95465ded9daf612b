"""Batches of another width in every step, as unpadded text gives them."""

import itertools

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randint(50, (2048, 400))), batch_size=16)
model = nn.Sequential(nn.Embedding(50, 8), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
widths = itertools.cycle(range(2, 400))
for _ in range(10_000):
    for (tokens,) in loader:
        optimizer.zero_grad()
        model(tokens[:, : next(widths)]).square().mean().backward()
        optimizer.step()
