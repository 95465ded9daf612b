"""A siamese model: the same module sees both halves of a pair."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

pairs = TensorDataset(torch.randn(2048, 8), torch.randn(2048, 8), torch.rand(2048))
loader = DataLoader(pairs, batch_size=16)
model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(10_000):
    for left, right, distance in loader:
        apart = (model(left) - model(right)).square().sum(1)
        loss = (apart - distance).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
