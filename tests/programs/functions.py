"""Training functions: one that takes nothing, one that reads its config."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train(epochs="10000"):
    loader = DataLoader(TensorDataset(torch.randn(4096, 8)), batch_size=16)
    fit(loader, int(epochs))


def train_with_config(config):
    size = config.get("batch_size", 16)
    loader = DataLoader(TensorDataset(torch.randn(4096, 8)), batch_size=size)
    print("batch size", size, flush=True)
    fit(loader, 10_000)


def fit(loader, epochs):
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for _ in range(epochs):
        for (x,) in loader:
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
