"""Trains a small net in nn.DataParallel, as scripts do that count the GPUs, and saves it.

Without a GPU, the CPU is two devices.
"""

import sys
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
torch.manual_seed(0)
x = torch.randn(2048, 3, 8, 8)
loader = DataLoader(TensorDataset(x, x.mean((1, 2, 3))), 64, shuffle=True)
model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(576, 1))
if DEVICE == "cpu":
    sys.path.append(str(Path(__file__).parents[2]))
    from tests.gpu_fakes import Replicated

    model = Replicated(model)
elif torch.cuda.device_count() > 1:
    model = nn.DataParallel(model)
model = model.to(DEVICE)
optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
for _ in range(100):
    for images, wanted in loader:
        loss = (model(images.to(DEVICE)).squeeze(1) - wanted.to(DEVICE)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    torch.save(model.state_dict(), "last.pt")
