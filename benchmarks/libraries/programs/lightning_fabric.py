"""Trains digits by a loop of its own under Lightning Fabric."""

import sys

import torch
from lightning.fabric import Fabric
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def main():
    epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    fabric = Fabric(accelerator="cpu", devices=1)
    fabric.launch()
    fabric.seed_everything(0)
    x, y = load_digits(return_X_y=True)
    data = TensorDataset(torch.tensor(x).float() / 16, torch.tensor(y))
    dataloader = fabric.setup_dataloaders(DataLoader(data, batch_size=16, shuffle=True))
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    model, optimizer = fabric.setup(model, optimizer)
    model.train()
    for epoch in range(epochs):
        for inputs, target in dataloader:
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(inputs), target)
            fabric.backward(loss)
            optimizer.step()
        fabric.print(epoch, round(loss.item(), 3))


if __name__ == "__main__":
    main()
