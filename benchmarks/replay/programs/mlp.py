"""Train a small network on scikit-learn's digits as plain vectors: a step is launching, no work."""

import argparse

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

parser = argparse.ArgumentParser()
parser.add_argument("--epochs", type=int, default=200)
parser.add_argument("--batch-size", type=int, default=16)
args = parser.parse_args()
torch.manual_seed(0)
pixels, labels = load_digits(return_X_y=True)
data = TensorDataset(torch.tensor(pixels / 16, dtype=torch.float32), torch.tensor(labels))
data = torch.utils.data.ConcatDataset([data] * 8)  # as long as a real set
loader = DataLoader(data, batch_size=args.batch_size, shuffle=True)
layers = [layer for _ in range(4) for layer in (nn.Linear(128, 128), nn.ReLU())]
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), *layers, nn.Linear(128, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
for epoch in range(args.epochs):
    for x, y in loader:
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.3f}")
