"""Draws its own batches, as many and as wide as its flags say; the function takes keywords."""

import argparse
import json
import os

import torch
from torch import nn


def train(batch_size=16, hidden=8, steps=10**6):
    print(json.dumps([batch_size, hidden, os.environ.get("FLAVOUR")]), flush=True)
    model = nn.Sequential(nn.Linear(8, hidden), nn.ReLU(), nn.Linear(hidden, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(steps):
        loss = model(torch.randn(batch_size, 8)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        before, gradient = model[2].bias.item(), model[2].bias.grad.item()
        optimizer.step()
        if step in (0, 5):  # the rate in force
            print(round((before - model[2].bias.item()) / gradient, 4), flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--hidden", type=int, default=8)
    parser.add_argument("--steps", type=int, default=10**6)
    args = parser.parse_args()
    train(args.batch_size, args.hidden, args.steps)
