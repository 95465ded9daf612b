"""Loops as people write them, each an ordinary training but for one thing; the argument says which."""

import dataclasses
import itertools
import os
import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

SAMPLES = torch.randn(2048, 8)
DATA = TensorDataset(SAMPLES)
LONG = 10_000


@dataclasses.dataclass
class Options:
    steps: int = 10**9


assert dataclasses.fields(Options)[0].type is int, "the script is compiled as it is written"


def linear():
    """A model and its optimizer; matrix products alone, so that no C++ has to be compiled."""
    model = nn.Linear(8, 1, bias=False)
    return model, torch.optim.SGD(model.parameters(), lr=1e-3)


def step(model, optimizer, x):
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()


def train(loader, loss_of, optimizer):
    """The loop of those that are ordinary in all but their loader or their loss."""
    for _ in range(LONG):
        for batch in loader:
            optimizer.zero_grad()
            loss_of(*batch).backward()
            optimizer.step()


def never_clears():
    """Clears gradients by hand, and never by zero_grad()."""
    model, optimizer = linear()
    loader = DataLoader(DATA, batch_size=16)
    for _ in range(LONG):
        for (x,) in loader:
            model(x).square().mean().backward()
            optimizer.step()
            for parameter in model.parameters():
                parameter.grad = None


def small_data():
    """Fewer samples than a batch holds: every epoch is one step."""
    model, optimizer = linear()
    loader = DataLoader(TensorDataset(SAMPLES[:40]), batch_size=64, shuffle=True)
    train(loader, lambda x: model(x).square().mean(), optimizer)


def drop_last():
    """Leaves out the last batch of an epoch, and insists that all are whole."""
    model = nn.BatchNorm1d(8)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    loader = DataLoader(TensorDataset(SAMPLES[:1030]), batch_size=16, drop_last=True)
    for _ in range(LONG):
        sizes = set()
        for (x,) in loader:
            sizes.add(len(x))
            if any(size & (size - 1) for size in sizes):
                raise SystemExit(f"a batch was not whole: {sizes}")
            step(model, optimizer, x)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(SAMPLES)


def iterable():
    """Streams its samples: a dataset without a length and without places."""
    model, optimizer = linear()
    loader = DataLoader(Stream(), batch_size=16)
    for _ in range(LONG):
        for x in loader:
            step(model, optimizer, x)


class Doubling(DataLoader):
    def __init__(self, data, batch_size, factor):
        super().__init__(data, batch_size, shuffle=True)
        self.factor = factor

    def __iter__(self):
        for (x,) in super().__iter__():
            yield self.factor * x


def subclass():
    """A DataLoader of the program's own kind, which changes what comes out of it."""
    model, optimizer = linear()
    loader = Doubling(TensorDataset(torch.rand(2048, 8)), 16, factor=2)
    biggest = 0.0
    for _ in range(LONG):
        for number, x in enumerate(loader):
            biggest = max(biggest, x.max().item())
            if number > 5 and not 1 < biggest <= 2:
                raise SystemExit(f"the loader's own __iter__ was left out: {biggest}")
            step(model, optimizer, x)


class Growing:
    """Batches of 8, then 16, then 24 and over again."""

    def __iter__(self):
        first = 0
        for number in range(len(self)):
            size = 8 * (number % 3 + 1)
            yield range(first, first + size)
            first += size

    def __len__(self):
        return 39


def batch_sampler():
    """Orders its batches by its own sampler."""
    model, optimizer = linear()
    loader = DataLoader(TensorDataset(SAMPLES[:640]), batch_sampler=Growing())
    train(loader, lambda x: model(x).square().mean(), optimizer)


def accumulates():
    """Two batches per optimizer step, a look at one sample first, a new loader for every epoch."""
    data = TensorDataset(SAMPLES[:640])
    next(iter(DataLoader(data, batch_size=4)))
    model, optimizer = linear()
    for _ in range(LONG):
        for number, (x,) in enumerate(DataLoader(data, batch_size=16, shuffle=True)):
            (model(x).square().mean() / 2).backward()
            if number % 2:
                optimizer.step()
                optimizer.zero_grad()


def called_twice():
    """A siamese model: the same module sees both halves of a pair."""
    pairs = TensorDataset(SAMPLES, torch.randn(2048, 8), torch.rand(2048))
    loader = DataLoader(pairs, batch_size=16)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)

    def loss_of(left, right, distance):
        apart = (model(left) - model(right)).square().sum(1)
        return (apart - distance).square().mean()

    train(loader, loss_of, optimizer)


class Head(nn.Module):
    def __init__(self):
        super().__init__()
        self.last = nn.Linear(16, 3)
        self.criterion = nn.CrossEntropyLoss()

    def forward(self, features, target):
        return self.criterion(self.last(features), target)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(8, 16), nn.ReLU())
        self.head = Head()


def inner_loss():
    """The outer module is never called: its parts are, and one of them makes the loss."""
    loader = DataLoader(TensorDataset(SAMPLES, torch.randint(3, (2048,))), batch_size=16)
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    train(loader, lambda x, y: model.head(model.body(x), y), optimizer)


def lbfgs():
    """An optimizer that calls the loss by itself, several times in a step."""
    loader, model = DataLoader(DATA, batch_size=16), nn.Linear(8, 1)
    optimizer = torch.optim.LBFGS(model.parameters(), lr=0.01, max_iter=4)
    for _ in range(LONG):
        for (x,) in loader:

            def closure():
                optimizer.zero_grad()
                loss = (model(x) - x.mean(1, keepdim=True)).square().mean()
                loss.backward()
                return loss

            optimizer.step(closure)


def gan():
    """Two optimizers in turn; the discriminator is called twice in each step."""
    loader = DataLoader(DATA, batch_size=16, shuffle=True)
    generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8))
    discriminator = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=1e-4)
    optimizer_g = torch.optim.Adam(generator.parameters(), lr=1e-4)
    loss_of = nn.BCEWithLogitsLoss()
    for _ in range(LONG):
        for (real,) in loader:
            ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
            fake = generator(torch.randn(len(real), 4))
            optimizer_d.zero_grad()
            found = discriminator(fake.detach())
            (loss_of(discriminator(real), ones) + loss_of(found, zeros)).backward()
            optimizer_d.step()
            optimizer_g.zero_grad()
            loss_of(discriminator(fake), ones).backward()
            optimizer_g.step()


def two_loaders():
    """Two training loaders side by side, and a checkpoint that is written aside and renamed."""
    labelled = DataLoader(TensorDataset(SAMPLES[:640]), batch_size=16)
    unlabelled = DataLoader(TensorDataset(SAMPLES[640:1280]), batch_size=32)
    model, optimizer = linear()
    for _ in range(100 * LONG):
        for (x,), (y,) in zip(labelled, unlabelled):
            loss = model(x).square().mean() + model(y).abs().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            torch.save(model.state_dict(), "last.tmp")
            os.replace("last.tmp", "last.pt")
            torch.load("last.pt")


def own_autocast():
    """Uses mixed precision by itself."""
    model, optimizer = linear()
    loader = DataLoader(TensorDataset(SAMPLES[:640]), batch_size=16)

    def loss_of(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return model(x).float().square().mean()

    train(loader, loss_of, optimizer)


def breaks_out():
    """Leaves its loop every 20 steps, validates with gradients on, and uses OneCycleLR by the plan."""
    train = DataLoader(TensorDataset(torch.randn(4096, 8)), batch_size=16, shuffle=True)
    valid = DataLoader(TensorDataset(SAMPLES[:64]), batch_size=32)
    model = nn.Sequential(nn.LazyLinear(8), nn.ReLU(), nn.Linear(8, 1))
    model(torch.zeros(1, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-2, total_steps=20 * 20)
    for _ in range(100 * LONG):
        for number, (x,) in enumerate(train):
            if number == 20:
                break
            step(model, optimizer, x)
            schedule.step()
            if number % 10 == 0:
                for (y,) in valid:
                    with torch.no_grad():
                        model(y)


def next_iter():
    """Takes a new iterator for every step; its batches are lists of images of uneven size."""
    images = [(torch.randn(3, 8 + number % 2, 8)) for number in range(640)]
    loader = DataLoader(images, batch_size=16, shuffle=True, collate_fn=list)
    model = nn.Conv2d(3, 4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
    for _ in range(Options.steps):
        optimizer.zero_grad()
        sum(model(image).square().mean() for image in next(iter(loader))).backward()
        optimizer.step()


def changing_shapes():
    """Batches of another width in every step, as unpadded text gives them."""
    loader = DataLoader(TensorDataset(torch.randn(2048, 400, 4)), batch_size=16)
    model = nn.Linear(4, 4, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    widths = itertools.cycle(range(2, 400))
    narrow = lambda tokens: tokens[:, : next(widths)].contiguous()
    train(loader, lambda tokens: model(narrow(tokens)).square().mean(), optimizer)


if __name__ == "__main__":
    globals()[sys.argv[1]]()
