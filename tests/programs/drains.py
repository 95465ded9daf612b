"""Workers need 8 ms for a batch, a step 3 ms: full buffers hide that for more than a second."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Slow(Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        time.sleep(0.002)
        return torch.randn(8), torch.zeros(1)


loader = DataLoader(Slow(), batch_size=8, num_workers=2, prefetch_factor=64)
model = nn.Linear(8, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
for x, y in loader:
    optimizer.zero_grad()
    nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
    time.sleep(0.003)
