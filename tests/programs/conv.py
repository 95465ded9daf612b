"""A small convolution net that validates each epoch and saves a checkpoint and a log."""

import logging
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

logging.basicConfig(filename="train.log", level=logging.INFO)
torch.manual_seed(0)
images = torch.randn(512, 3, 16, 16)
labels = torch.randint(0, 4, (512,))
train = DataLoader(TensorDataset(images, labels), batch_size=16, shuffle=True)
val = DataLoader(TensorDataset(images[:128], labels[:128]), batch_size=64)
model = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(),
    nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
    nn.Linear(16, 4),
)
criterion = nn.CrossEntropyLoss()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
Path("metrics.txt").write_text("begun\n")
for epoch in range(500):
    model.train()
    for step, (x, y) in enumerate(train):
        loss = criterion(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step == 10:
            torch.save(model.state_dict(), "checkpoint.pt")
            logging.info("step %d", step)
    model.eval()
    with torch.no_grad():
        for x, y in val:
            criterion(model(x), y)
    Path("epochs.txt").open("a").write(f"{epoch}\n")
