"""Trains well at its own batch size; argv[1] says what goes wrong with a larger one."""

import os
import signal
import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

print("Error: this word alone is no failure")
trouble = sys.argv[1]
loader = DataLoader(TensorDataset(torch.randn(4096, 8)), batch_size=16)
LONG = 7_000_000  # more than a message or a log may have
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
for _ in range(10_000):
    for (x,) in loader:
        loss = model(x).square().mean()
        if len(x) > 16:
            if trouble == "hang":
                time.sleep(3600)
            elif trouble == "memory":
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")
            elif trouble == "killed":
                os.kill(os.getpid(), signal.SIGKILL)
            elif trouble == "crash":
                raise ValueError("expected 16 rows [not more]" + " and so on" * LONG)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
