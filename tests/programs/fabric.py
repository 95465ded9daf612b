"""Leaves devices, wrapping and sharing of data to Lightning's Fabric."""

import sys

import torch
from lightning.fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

fabric = Fabric(accelerator="cpu", devices="auto")
fabric.launch()
fabric.seed_everything(0)
features = torch.randn(4096, 16)
loader = DataLoader(TensorDataset(features, features.sum(1)), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
model, optimizer = fabric.setup(model, optimizer)
loader = fabric.setup_dataloaders(loader)
print(f"{fabric.world_size} processes", flush=True)
for _ in range(int(sys.argv[1]) if len(sys.argv) > 1 else 1000):
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x).squeeze(1), y)
        optimizer.zero_grad()
        fabric.backward(loss)
        optimizer.step()
