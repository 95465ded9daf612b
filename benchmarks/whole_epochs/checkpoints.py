"""Train a wide net on little data, and save 130 MB after each epoch."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

if __name__ == "__main__":
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(128, 4096), torch.randint(0, 10, (128,)))
    train = DataLoader(data, batch_size=16, shuffle=True)
    model = nn.Sequential(nn.Linear(4096, 2600), nn.ReLU(), nn.Linear(2600, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.01, momentum=0.9)
    for epoch in range(int(sys.argv[1])):
        for x, y in train:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        checkpoint = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(checkpoint, "last.pt")
        print(f"epoch {epoch}", flush=True)
