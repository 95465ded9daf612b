"""Train a network to do what another one does; print its loss on inputs that it does not see."""

import argparse
import json
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def net(width: int) -> nn.Module:
    """Return two hidden layers of a width."""
    return nn.Sequential(
        nn.Linear(32, width), nn.Tanh(), nn.Linear(width, width), nn.Tanh(), nn.Linear(width, 1)
    )


parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--seconds", type=float, default=600.0)
args = parser.parse_args()
torch.manual_seed(7)
teacher, inputs = net(16), torch.randn(34000, 32)
with torch.no_grad():
    outputs = 4 * teacher(inputs) + 0.1 * torch.randn(34000, 1)
torch.manual_seed(args.seed)
train = DataLoader(TensorDataset(inputs[:32768], outputs[:32768]), batch_size=32, shuffle=True)
held_out = DataLoader(TensorDataset(inputs[32768:], outputs[32768:]), batch_size=2000)
model = net(64)
optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
began, seen, evaluate_at = time.perf_counter(), 0, 4096
for _ in range(1000):
    for x, y in train:
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        seen += len(x)
        if seen >= evaluate_at:
            evaluate_at += 4096
            with torch.no_grad():
                losses = [nn.functional.mse_loss(model(v), w).item() for v, w in held_out]
            passed = time.perf_counter() - began
            print(json.dumps([round(passed, 3), seen, round(sum(losses), 5)]), flush=True)
            if passed > args.seconds:
                raise SystemExit
