"""A training with one fault of the user's choice, and the same training without it.

``faulty.py FAULT`` has it; ``faulty.py FAULT --sound`` is its twin, alike in all else.
"""

import argparse
import itertools
import os
import tempfile
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

parser = argparse.ArgumentParser()
parser.add_argument("fault")
parser.add_argument("--sound", action="store_true")
options = parser.parse_args()
FAULT, HAS_FAULT = options.fault, not options.sound
torch.manual_seed(0)
torch.set_num_threads(1)  # two spinning threads would hide all else on a busy machine
SIZE, CLASSES = 64, 4


class Data(Dataset):
    """Items that are slow to load in one of several ways."""

    def __init__(self) -> None:
        self.items = torch.randn(4000, SIZE)
        self.folder = Path(tempfile.mkdtemp())
        if FAULT == "disk":
            (self.folder / "data").write_bytes(os.urandom(1 << 20) * 64)
            os.sync()

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int):
        if HAS_FAULT:
            getattr(self, f"load_by_{FAULT}", lambda _: None)(index)
        return self.items[index], index % CLASSES

    def load_by_python(self, index: int) -> None:
        total = 0
        for number in range(20_000):
            total = (total * 31 + number) % 1009

    def load_by_disk(self, index: int) -> None:
        with open(self.folder / "data", "rb", buffering=0) as file:
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            for part in range(8):
                file.seek(((index * 8 + part) * 7919 % 60) << 20)
                file.read(1 << 20)

    def load_by_sleep(self, index: int) -> None:
        time.sleep(0.004)


def model() -> nn.Module:
    if FAULT == "launch":
        width, depth = (2, 140) if HAS_FAULT else (768, 4)  # 2,000 operators a step, or few
        layers = [nn.Linear(width, width) for _ in range(depth)]
        return nn.Sequential(nn.Linear(SIZE, width), *layers, nn.Linear(width, CLASSES))
    if FAULT == "padding":
        return nn.Sequential(nn.Embedding(100, SIZE), nn.Linear(SIZE, 64), Mean(), nn.Linear(64, CLASSES))
    if FAULT == "shapes":
        return nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), Mean(), nn.Linear(16, CLASSES))
    return nn.Sequential(nn.Linear(SIZE, 4096), nn.ReLU(), nn.Linear(4096, CLASSES))


class Mean(nn.Module):
    """The mean over all places."""

    def forward(self, x):
        return x.mean(1) if x.dim() == 3 else x.mean((2, 3))


def filled(items):
    """Texts filled up to the longest, or images of another size in each batch."""
    labels = torch.tensor([label for _, label in items])
    if FAULT == "shapes":
        side = 16 + (next(BATCHES) % 30 if HAS_FAULT else 0)
        return torch.randn(len(items), 3, side, side), labels
    # Lengths of 20 to 100 and the longest in each batch, so that 40 % of a batch are padding
    lengths = [20 + int(number) % 81 if HAS_FAULT else 60 for number in torch.randint(81, (len(items),))]
    texts = [torch.randint(1, 100, (length,)) for length in [100 if HAS_FAULT else 60, *lengths[1:]]]
    return nn.utils.rnn.pad_sequence(texts, batch_first=True), labels


def bind(worker: int) -> None:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})


if FAULT == "bound" and HAS_FAULT:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
if FAULT == "deterministic" and HAS_FAULT:
    torch.use_deterministic_algorithms(True)
if FAULT == "anomaly" and HAS_FAULT:
    torch.autograd.set_detect_anomaly(True)
if FAULT == "ranks":
    torch.distributed.init_process_group("gloo")
batch = 4000 if FAULT == "large_batch" and HAS_FAULT else 64
BATCHES = itertools.count()
data = Data()
workers = 2 if FAULT == "bound_workers" else 0
loader = DataLoader(
    data, batch, shuffle=True, num_workers=workers,
    collate_fn=filled if FAULT in {"padding", "shapes"} else None,
    worker_init_fn=bind if FAULT == "bound_workers" and HAS_FAULT else None,
)
net = model()
if FAULT == "data_parallel" and HAS_FAULT:
    net = nn.DataParallel(net)
if FAULT == "ranks":
    net = nn.parallel.DistributedDataParallel(net)
optimizer = torch.optim.SGD(net.parameters(), lr=0.01)
criterion = nn.CrossEntropyLoss()
kept, hoard = [], []
for epoch in range(10_000):
    for inputs, labels in loader:
        if FAULT == "ranks" and HAS_FAULT and torch.distributed.get_rank() == 1:
            time.sleep(0.02)
        output = net(inputs)
        loss = criterion(output, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if FAULT == "kept_graphs":
            kept.append(loss if HAS_FAULT else loss.item())
        if FAULT == "growth":
            hoard.append(bytearray(os.urandom(1 << 18))) if HAS_FAULT else None
