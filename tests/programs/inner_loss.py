"""The outer module is never called: its parts are, and one of them makes the loss."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(16, 3)
        self.criterion = nn.CrossEntropyLoss()

    def forward(self, features, target):
        return self.criterion(self.last(features), target)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.head = Head()


loader = DataLoader(TensorDataset(torch.randn(2048, 8), torch.randint(3, (2048,))), batch_size=16)
model = Model()
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(10_000):
    for x, y in loader:
        loss = model.head(model.body(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
