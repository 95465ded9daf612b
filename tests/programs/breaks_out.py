"""Leaves its loop every 20 steps, validates with gradients on, and uses OneCycleLR by the plan."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

data = TensorDataset(torch.randn(4096, 8))
train = DataLoader(data, batch_size=16, shuffle=True)
val = DataLoader(TensorDataset(torch.randn(64, 8)), batch_size=32)
model = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.Linear(8, 1))
model(torch.zeros(1, 8))
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
epochs = 20
schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=epochs * 20)
for _ in range(10**6):
    for step, (x,) in enumerate(train):
        if step == 20:
            break
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        if step % 10 == 0:
            for (y,) in val:
                with torch.no_grad():
                    model(y)
