"""Validates between steps, and insists that its validation batches are as it made them."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

train = DataLoader(TensorDataset(torch.randn(2048, 8)), batch_size=16, shuffle=True)
valid = DataLoader(TensorDataset(torch.randn(50, 8)), batch_size=20)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(10_000):
    for number, (x,) in enumerate(train):
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
        if number % 10 == 0:
            model.eval()
            with torch.no_grad():
                sizes = [len(model(v)) for (v,) in valid]
            if sizes != [20, 20, 10] or len(valid) != 3 or valid.num_workers:
                raise SystemExit(f"validation saw batches of {sizes}")
            model.train()
