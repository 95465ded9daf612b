"""Orders its batches by its own sampler."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(640, 8))


class Growing:
    """Batches of 8, then 16, then 24 and over again."""

    def __iter__(self):
        first = 0
        for number in range(len(self)):
            size = 8 * (number % 3 + 1)
            yield range(first, first + size)
            first += size

    def __len__(self):
        return 39


loader = DataLoader(data, batch_sampler=Growing())
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(10_000):
    for (x,) in loader:
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
