"""A linear model that never learns (its rate is 0): the noise of its gradients can be calculated."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(3)
inputs = torch.randn(2048, 4)
targets = inputs.sum(1, keepdim=True) + 2.0 * torch.randn(2048, 1)
model = nn.Linear(4, 1)
nn.init.zeros_(model.weight)
nn.init.zeros_(model.bias)
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
for _ in range(10_000):
    for x, y in DataLoader(TensorDataset(inputs, targets), batch_size=16, shuffle=True):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
