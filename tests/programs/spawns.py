"""Starts its ranks itself, by what the first argument names.

By processes, as the DDP tutorial does, or by its own script, as Lightning's launcher does; "alone"
are processes of which each trains a model, one after the other.
"""

import os
import signal
import subprocess
import sys

import torch
import torch.multiprocessing as mp
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

BATCH = 32  # one that is larger makes the second rank fail


def fail(way: str) -> None:
    """Fail, as the second of two ranks."""
    match way:
        case "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exits":
            sys.exit(3)
        case "raises":
            raise RuntimeError("rank 1 has had enough")


def train(rank: int, world_size: int, way: str, port: int) -> None:
    os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port))
    torch.manual_seed(0)
    torch.set_num_threads(1)
    features = torch.randn(4096, 16)
    data = TensorDataset(features, features.sum(1))
    sampler = None
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
    if way != "alone":
        distributed.init_process_group("gloo", rank=rank, world_size=world_size)
        model = DistributedDataParallel(model)
        sampler = DistributedSampler(data)
    loader = DataLoader(data, batch_size=BATCH, sampler=sampler)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    steps = 0
    for _ in range(3):
        for x, y in loader:
            steps += 1
            if len(x) > BATCH and rank == 1:
                fail(way)
            loss = nn.functional.mse_loss(model(x).squeeze(1), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(f"rank {rank} of {world_size}: {steps} steps of {len(x)}\n", end="", flush=True)
    if way != "alone":
        distributed.destroy_process_group()


if __name__ == "__main__":
    method, way, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
    if method == "script":
        if "LOCAL_RANK" not in os.environ:
            os.environ.update(LOCAL_RANK="0", WORLD_SIZE="2")
            again = [sys.executable, os.path.abspath(sys.argv[0]), *sys.argv[1:]]
            subprocess.Popen(again, env={**os.environ, "LOCAL_RANK": "1"})
        train(int(os.environ["LOCAL_RANK"]), 2, way, port)
    elif way == "alone":
        for _ in range(2):
            trainer = mp.get_context(method).Process(target=train, args=(0, 1, way, port))
            trainer.start()
            trainer.join()
    elif method == "spawn":
        mp.spawn(train, args=(2, way, port), nprocs=2)
    else:
        mp.start_processes(train, args=(2, way, port), nprocs=2, start_method=method)
    print("after training", flush=True)
