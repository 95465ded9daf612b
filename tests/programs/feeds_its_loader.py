"""Its loop supplies the items that its loader reads: without a step, there are no more items."""

import time
from queue import Queue

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset

AHEAD = 8

queue: Queue[torch.Tensor] = Queue()
for _ in range(AHEAD):
    queue.put(torch.randn(16))


class Played(IterableDataset):
    def __iter__(self):
        while True:
            yield queue.get()


net = nn.Linear(16, 16)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
for batch in DataLoader(Played(), batch_size=AHEAD):
    optimizer.zero_grad()
    net(batch).square().mean().backward()
    optimizer.step()
    time.sleep(0.003)  # what it plays in takes time
    for item in batch:
        queue.put(item)
