"""Makes its own batches: by torch's random numbers, by its own, or the whole data each time."""

import sys

import torch
from torch import nn

torch.manual_seed(0)
source = sys.argv[1]
generator = torch.Generator().manual_seed(1) if source == "own" else None
model = nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.randn(32, 16)
while True:
    if source != "whole":
        x = torch.randn(32, 16, generator=generator)
    loss = (model(input=x) - x.sum(1, keepdim=True)).square().mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
