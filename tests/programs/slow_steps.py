"""Each step takes as many seconds as the argument says."""

import sys
import time

import torch
from torch.utils.data import DataLoader, TensorDataset

step_s = float(sys.argv[1])
loader = DataLoader(TensorDataset(torch.randn(4096, 4)), batch_size=8, shuffle=True)
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    for (x,) in loader:
        time.sleep(step_s)
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
