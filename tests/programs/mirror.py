"""Writes what it sees of itself in each step, one JSON line each: what torch and its workers do.

argv[1] is where; with "setup", the program sets what torch fixes at its start.
"""

import json
import multiprocessing
import os
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info

SLOW = 64  # each so manieth sample takes long, so that batches finish out of order


class Items(Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, index):
        if index % SLOW == 0:
            time.sleep(0.02)
        worker = get_worker_info()
        return {
            "x": torch.full((4, 8), index / 512),
            "index": index,
            "worker": -1 if worker is None else worker.id,
            "threads": torch.get_num_threads(),
            "pid": os.getpid(),
            "process": type(multiprocessing.current_process()).__name__,
        }


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.last = nn.Linear(8, 1)

    def forward(self, x):
        q = self.inner(x).unsqueeze(1)
        self.kernel = torch._fused_sdp_choice(q, q, q)
        return self.last(nn.functional.scaled_dot_product_attention(q, q, q))


def see(model, optimizer, batch):
    return {
        "first": int(batch["index"][0]),
        "workers": sorted(set(batch["worker"].tolist())),
        "worker_threads": int(batch["threads"][0]),
        "pid": int(batch["pid"][0]),
        "process": batch["process"][0],
        "threads": torch.get_num_threads(),
        "matmul_precision": torch.get_float32_matmul_precision(),
        "flushes": float(torch.tensor([1e-310], dtype=torch.float64) * 1) == 0.0,
        "kernel": model.kernel,
        "flags": [optimizer.param_groups[0][name] for name in ("foreach", "fused")],
    }


def main():
    if "setup" in sys.argv:
        torch.set_flush_denormal(False)
        torch.set_num_threads(2)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    loader = DataLoader(Items(), batch_size=16)
    with Path(sys.argv[1]).open("w") as mirror:
        for _ in range(100_000):
            for batch in loader:
                model(batch["x"]).square().mean().backward()
                optimizer.step()
                optimizer.zero_grad()
                print(json.dumps(see(model, optimizer, batch)), file=mirror, flush=True)


if __name__ == "__main__":
    main()
