"""Trains and evaluates a small net of repeated blocks on data that change from epoch to epoch."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Items(Dataset):
    epoch = 0

    def __init__(self, count):
        made = torch.Generator().manual_seed(1)
        self.images = torch.randn(count, 3, 8, 8, generator=made)
        self.labels = (self.images.mean((1, 2, 3)) > 0).long()

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        image = self.images[index] * (1 + 0.1 * torch.rand(())) * (1 + 0.5 * self.epoch)
        return image, self.labels[index]


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(16, 16, 3, padding=1)
        self.norm = nn.BatchNorm2d(16)

    def forward(self, x):
        return x + torch.relu(self.norm(self.conv(x)))


def step(x, y):
    loss = nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


data = Items(2048)
model = nn.Sequential(
    nn.Conv2d(3, 16, 3, padding=1, stride=2), *(Block() for _ in range(4)), nn.ReLU(),
    nn.Flatten(), nn.Dropout(0.3), nn.Linear(16 * 16, 2),
)  # fmt: skip
optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
train, valid = DataLoader(data, 16, shuffle=True), DataLoader(data, 64)
for _ in range(4):
    for x, y in train:
        step(x, y)
    data.epoch += 1
    model.eval()
    with torch.no_grad():
        sum(float(model(x).sum()) for x, _ in valid)
    model.train()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, "last.pt")
