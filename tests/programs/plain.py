"""A map-style dataset, shuffled, with dropout; writes each loss exactly as it is."""

import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
losses = Path(sys.argv[1]).open("w")
epochs = int(sys.argv[2]) if len(sys.argv) > 2 else 1000
features = torch.randn(2048, 16)
labels = (features.sum(1) > 0).long()
loader = DataLoader(TensorDataset(features, labels), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Dropout(0.1), nn.Linear(64, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=epochs * len(loader))
for epoch in range(epochs):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad(set_to_none=False)
        loss.backward()
        optimizer.step()
        scheduler.step()
        print(len(x), len(loader), scheduler.get_last_lr()[0], loss.item().hex(), file=losses, flush=True)
