"""Its loader's worker falls silent; the argument says after how many batches."""

import sys
import time

import torch
from torch.utils.data import DataLoader, Dataset


class Numbers(Dataset):
    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        if index >= 8 * int(sys.argv[1]):
            time.sleep(10_000)
        time.sleep(0.001)
        return torch.tensor([float(index % 7)])


model = torch.nn.Linear(1, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for x in DataLoader(Numbers(), batch_size=8, num_workers=1):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
