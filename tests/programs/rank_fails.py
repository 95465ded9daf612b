"""Trains until one of its ranks fails in the way that the first argument names."""

import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import distributed, nn
from torch.utils.data import DataLoader, TensorDataset

FAILING_STEP = 30
way = sys.argv[1]


def fail() -> None:
    """Fail, as the second of two ranks."""
    match way:
        case "dies":
            os.kill(os.getpid(), signal.SIGKILL)
        case "exits":
            os._exit(3)
        case "raises":
            raise RuntimeError("rank 1 has had enough")
        case "hangs":
            time.sleep(1000)
        case "fills memory":
            torch.empty(1 << 60)
        case "ends":
            sys.exit()


def begin_late() -> None:
    """Let one rank, whichever comes first, take its time."""
    try:
        os.close(os.open(Path(sys.argv[2]) / "came-first", os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return
    time.sleep(4)


if way == "starts late":
    begin_late()
torch.manual_seed(0)
features = torch.randn(4096, 16)
loader = DataLoader(TensorDataset(features, features.sum(1)), batch_size=32, shuffle=True)
model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
steps = 0
while True:
    for x, y in loader:
        steps += 1
        is_second = distributed.is_initialized() and distributed.get_rank() == 1
        if steps == FAILING_STEP and is_second:
            fail()
        loss = nn.functional.mse_loss(model(x).squeeze(1), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
