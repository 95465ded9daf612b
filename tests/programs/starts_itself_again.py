"""Starts its own script again as the second of two ranks, as Lightning's launcher does."""

import os
import signal
import subprocess
import sys

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

BATCH = 32  # one that is larger makes the second rank fail
way, port = sys.argv[1], sys.argv[2]


def fail() -> None:
    """Fail, as the second of two ranks."""
    match way:
        case "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exits":
            sys.exit(3)
        case "raises":
            raise RuntimeError("rank 1 has had enough")


if "LOCAL_RANK" not in os.environ:
    os.environ.update(LOCAL_RANK="0", WORLD_SIZE="2", MASTER_ADDR="localhost", MASTER_PORT=port)
    env = {**os.environ, "LOCAL_RANK": "1"}
    subprocess.Popen([sys.executable, os.path.abspath(sys.argv[0]), *sys.argv[1:]], env=env)
rank = int(os.environ["LOCAL_RANK"])
torch.manual_seed(0)
torch.set_num_threads(1)
distributed.init_process_group("gloo", rank=rank, world_size=2)
features = torch.randn(4096, 16)
data = TensorDataset(features, features.sum(1))
loader = DataLoader(data, batch_size=BATCH, sampler=DistributedSampler(data))
model = DistributedDataParallel(nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1)))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
steps = 0
for _ in range(3):
    for x, y in loader:
        steps += 1
        if len(x) > BATCH and rank == 1:
            fail()
        loss = nn.functional.mse_loss(model(x).squeeze(1), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
print(f"rank {rank} of 2: {steps} steps of {len(x)}\n", end="", flush=True)
distributed.destroy_process_group()
