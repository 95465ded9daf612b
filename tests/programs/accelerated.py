"""Leaves devices, wrapping and sharing of data to Accelerate."""

import sys

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

accelerator = Accelerator(cpu=True)
torch.manual_seed(0)
features = torch.randn(4096, 16)
loader = DataLoader(TensorDataset(features, features.sum(1)), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
model, optimizer, loader = accelerator.prepare(model, optimizer, loader)
print(f"{accelerator.num_processes} processes, {type(model).__name__}", flush=True)
for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 1000):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x).squeeze(1), y)
        optimizer.zero_grad()
        accelerator.backward(loss)
        optimizer.step()
