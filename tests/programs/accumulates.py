"""Two batches per optimizer step, a look at one sample first, a new loader for every epoch."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(640, 8))
sample = next(iter(DataLoader(data, batch_size=4)))
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(10_000):
    for number, (x,) in enumerate(DataLoader(data, batch_size=16, shuffle=True)):
        (model(x).square().mean() / 2).backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()
