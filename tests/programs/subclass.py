"""A DataLoader of the program's own kind, which changes what comes out of it."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Doubling(DataLoader):
    def __init__(self, data, batch_size, factor):
        super().__init__(data, batch_size, shuffle=True)
        self.factor = factor

    def __iter__(self):
        for (x,) in super().__iter__():
            yield self.factor * x


loader = Doubling(TensorDataset(torch.rand(2048, 8)), 16, factor=2)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
biggest = 0.0
for _ in range(10_000):
    for number, x in enumerate(loader):
        biggest = max(biggest, x.max().item())
        if number > 5 and not 1 < biggest <= 2:
            raise SystemExit(f"the loader's own __iter__ was left out: {biggest}")
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()
