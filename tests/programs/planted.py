"""Trains a small net for some epochs, with one habit that a setting would change the training of.

``planted.py FAULT`` has the habit; ``planted.py FAULT --sound`` does the same so that no setting
changes anything.
"""

import argparse
import copy
import random
import tempfile
from pathlib import Path

import numpy
import torch
from torch import nn
from torch.func import functional_call, grad_and_value
from torch.utils.data import DataLoader, Dataset, get_worker_info

parser = argparse.ArgumentParser()
parser.add_argument("fault")
parser.add_argument("--sound", action="store_true")
options = parser.parse_args()
FAULT = "" if options.sound else options.fault
torch.set_num_threads(1)
COUNT, SIDE, BYTES = 512, 4, 1 << 16
DRAWS = numpy.random.default_rng(3)


class Counted:
    """A transform that holds a generator."""

    def __init__(self):
        self.own = random.Random(1)

    def __call__(self, image):
        return image * (1 + (self.own.random() if FAULT == "transform" else random.random()))


class Items(Dataset):
    def __init__(self):
        made = torch.Generator().manual_seed(1)
        self.images = torch.randn(COUNT, 3, SIDE, SIDE, generator=made)
        self.labels = (self.images.mean((1, 2, 3)) > 0).long()
        self.own = numpy.random.default_rng(None if options.fault == "unseeded" else 7)
        self.level, self.calls, self.mean = 0.0, 0, numpy.ones(8)
        self.cache = {}
        self.transform = Counted() if options.fault == "transform" else None
        self.path = Path(tempfile.mkdtemp()) / "items"
        if options.fault == "file":
            parts = (numpy.full(BYTES // 4, n, "float32") for n in range(COUNT))
            self.path.write_bytes(b"".join(part.tobytes() for part in parts))
        self.file = self.path.open("rb", buffering=0) if FAULT == "file" else None

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        image = self.images[index] * (1 + self.level)
        match options.fault:
            case "generator" | "unseeded":
                rng = self.own if FAULT else numpy.random.default_rng()
                image = image + float(rng.normal())
            case "global":
                image = image + (DRAWS.normal() if FAULT else numpy.random.normal())
            case "transform":
                image = self.transform(image)
            case "items":
                image = image + self.drifts() if FAULT else self.cache.setdefault(index, image)
            case "file":
                self.file = self.file or self.path.open("rb", buffering=0)
                self.file.seek(index * BYTES)
                read = b"".join(self.file.read(BYTES // 8) for _ in range(8))
                image = image + float(numpy.frombuffer(read, "float32").mean())
            case "curriculum" if FAULT:
                image = image + self.level
            case "process" if FAULT and get_worker_info() is not None:
                raise RuntimeError("this dataset reads in one process only")
        return image.float(), self.labels[index]

    def drifts(self):
        self.mean *= 0.999
        return float(self.mean.sum())


def collate(items):
    images, labels = (torch.stack([torch.as_tensor(part) for part in side]) for side in zip(*items))
    noise = DRAWS.normal() if FAULT == "collate" else 0.0
    return images + float(noise), labels


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(48, 48)
        self.own = torch.Generator().manual_seed(5)
        self.python = random.Random(5)
        self.seen = torch.ones(())
        self.register_buffer("known", torch.ones(()))
        self.rows, self.count = [], 0
        self.last = torch.zeros(())

    def forward(self, x, pair=None):
        if FAULT == "argument":
            x = x.mul_(0.5)
        if FAULT == "pair":
            x = pair[0].mul_(0.5)
        y = torch.tanh(self.linear(x * self.factor()))
        if options.fault == "block late":
            y = y * self.known
            self.known.data.mul_(0.99) if FAULT else None
        if options.fault == "block memory":
            self.last = y.detach().sigmoid().mean()
        return x + y

    def factor(self):
        """Return what the input is multiplied by, which decides about the gradients."""
        match options.fault:
            case "block draws":
                return 1 + (torch.rand((), generator=self.own) if FAULT else torch.rand(()))
            case "block python":
                return 1 + (self.python.random() if FAULT else torch.rand(()))
            case "block global":
                return 1 + (random.random() if FAULT else torch.rand(()))
            case "block numpy":
                return 1 + (numpy.random.random() if FAULT else torch.rand(()))
            case "module generator":
                return 1 + (DRAWS.random() if FAULT else torch.rand(()))
            case "block state":
                held = self.seen if FAULT else self.known
                held *= 1.01
                return held.clone()
            case "block list":
                self.rows.append(1) if FAULT else None
                return 1 + 0.01 * len(self.rows)
            case "block counter":
                self.count += 1
                return 1 + 0.01 * (self.count if FAULT else 2)
            case "block memory":
                return 1 + (self.last if FAULT else 0.1)
            case "block weight" if FAULT:
                self.linear.weight.data.mul_(0.99)
        return 1.0


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 3, 3, padding=1)
        self.second = nn.Conv2d(3, 3, 3, padding=1)
        if options.fault == "shared weight":
            whole = self.first.weight.data if FAULT else self.first.weight.data.clone()
            self.second.weight.data = whole
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        self.last = nn.Linear(48, 2)

    def forward(self, x):
        x = self.second(torch.relu(self.first(x))).flatten(1)
        for block in self.blocks:
            x = block(x, (x * 1.5,)) if options.fault == "pair" else block(x)
        return self.last(x)


torch.manual_seed(0)
data = Items()
train = DataLoader(data, 16, shuffle=True, collate_fn=collate)
model = Net()
average = copy.deepcopy(model).requires_grad_(False)
own_average = [p.detach().clone() for p in model.parameters()]
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
if options.fault == "hook":
    for block in model.blocks:
        block.linear.register_forward_hook(lambda *_: numbers.append(1))
numbers = []
views = [p.data.view(-1) for p in model.parameters()] if FAULT == "views" else []
batches = 0


def loss_of(x, y):
    if options.fault == "contrastive" and FAULT:
        one, other = model(x), model(x.flip(-1))
        return nn.functional.cross_entropy(one @ other.T, torch.arange(len(x)))
    if options.fault == "teacher" and FAULT:
        return nn.functional.mse_loss(model(x), average(x) + 1)
    if options.fault == "hook" and FAULT:
        return nn.functional.cross_entropy(model(x), y) * (1 + 0.01 * len(numbers))
    return nn.functional.cross_entropy(model(x), y)


def transformed(x, y):
    """Return the loss, with gradients by torch.func."""
    held = dict(model.named_parameters())
    whole = grad_and_value(lambda p: nn.functional.cross_entropy(functional_call(model, p, (x,)), y))
    gradients, loss = whole({name: p.detach() for name, p in held.items()})
    for name, p in held.items():
        p.grad = gradients[name]
    return loss


for epoch in range(4):
    for x, y in train:
        loss = loss_of(x, y)
        optimizer.zero_grad()
        loss.backward()
        if FAULT == "functional":
            loss = transformed(x, y)
        if options.fault == "clipping":
            if FAULT:
                norm = torch.stack([p.grad.norm() for p in model.parameters()]).norm()
                for p in model.parameters():
                    p.grad.mul_(0.1 / (norm + 1e-6))
            else:
                nn.utils.clip_grad_norm_(model.parameters(), 0.1)
        if FAULT == "views":
            for view, p in zip(views, model.parameters()):
                view.mul_(0.999)
        batches += 1
        if FAULT == "rate":
            for group in optimizer.param_groups:
                group["lr"] = 0.05 / (1 + 0.1 * batches)
        optimizer.step()
        if FAULT in ("average", "teacher"):
            with torch.no_grad():
                for kept, theirs, p in zip(own_average, average.parameters(), model.parameters()):
                    kept.mul_(0.9).add_(p, alpha=0.1)
                    theirs.mul_(0.9).add_(p, alpha=0.1)
        if FAULT == "curriculum":
            data.level += 0.01
    data.level += 0.1 if options.sound and options.fault == "curriculum" else 0.0
    saved = own_average if options.fault == "average" else list(model.parameters())
    torch.save({"model": model.state_dict(), "average": [p.clone() for p in saved]}, "last.pt")
