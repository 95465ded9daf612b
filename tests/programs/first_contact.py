"""Trains by itself, in a terminal, where nobody asks it for more; says by its argument what it wants."""

import os
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

match sys.argv[1]:
    case "terminal":
        _, columns = os.popen("stty size", "r").read().split()
        print(f"{columns} columns, {os.get_terminal_size().lines} lines")
    case "input":
        print("Loading.")
        path = input("Where is the data set? ")
    case "untouched":
        written = DataLoader.__iter__.__code__.co_filename
        if not written.startswith(os.path.dirname(torch.__file__)):
            raise ImportError(f"torch's own DataLoader is wanted, not one of {written}")
loader = DataLoader(TensorDataset(torch.randn(640, 8), torch.randn(640, 1)), batch_size=16)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
for _ in range(2):
    for x, y in loader:
        loss = (model(x) - y).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
