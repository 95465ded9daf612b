"""Distributes itself, as torchrun's documentation shows; prints how its DDP was made."""

import os

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

distributed.init_process_group("gloo")
rank = int(os.environ["LOCAL_RANK"])
torch.manual_seed(0)
features = torch.randn(4096, 16)
data = TensorDataset(features, features.sum(1))
sampler = DistributedSampler(data, shuffle=True)
loader = DataLoader(data, batch_size=32, sampler=sampler)
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1)))
print(f"rank {rank}: buckets of {model.bucket_bytes_cap >> 20} MiB", flush=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
for epoch in range(1000):
    sampler.set_epoch(epoch)
    for x, y in loader:
        loss = nn.functional.mse_loss(model(x).squeeze(1), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
distributed.destroy_process_group()
