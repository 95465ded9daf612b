"""An optimizer that calls the loss by itself, several times in a step."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(2048, 8)), batch_size=16)
model = nn.Linear(8, 1)
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=4)
for _ in range(10_000):
    for (x,) in loader:

        def closure():
            optimizer.zero_grad()
            loss = (model(x) - x.mean(1, keepdim=True)).square().mean()
            loss.backward()
            return loss

        optimizer.step(closure)
