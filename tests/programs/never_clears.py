"""Clears gradients by hand, and never by zero_grad()."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(2048, 8)), batch_size=16)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(10_000):
    for (x,) in loader:
        model(x).square().mean().backward()
        optimizer.step()
        for parameter in model.parameters():
            parameter.grad = None
