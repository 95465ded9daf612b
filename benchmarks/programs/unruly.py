"""Programs that do not fit into a budget, by the word that is their argument."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Callable

import torch
import torch.multiprocessing as mp
from torch.multiprocessing.spawn import spawn
from torch.utils.data import DataLoader, Dataset

FOR_EVER_S = 100_000.0


class Numbers(Dataset[torch.Tensor]):
    """Falls silent from an item on."""

    def __init__(self, silent_from: float = float("inf")) -> None:
        self.silent_from = silent_from

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: int) -> torch.Tensor:
        time.sleep(FOR_EVER_S if index >= self.silent_from else 0.0005)
        return torch.tensor([float(index % 7)])


def train(
    model: torch.nn.Module,
    data: Numbers,
    step_s: float = 0.0,
    workers: int = 0,
    steps: float = float("inf"),
) -> None:
    """Train for so many steps, which take so long each."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    made = 0
    while True:
        for x in DataLoader(data, batch_size=8, num_workers=workers):
            time.sleep(step_s)
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            made += 1
            if made >= steps:
                return


def train_as_process(_rank: int, model: torch.nn.Module) -> None:
    """Train in a process that another one started."""
    torch.set_num_threads(1)
    train(model, Numbers())


def prepare() -> None:
    """Prepare data for ever."""
    while True:
        time.sleep(0.1)


def count() -> None:
    """Do what never lets the interpreter rest, deaf to SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    number = 0
    while True:
        number += 1


def evaluate(model: torch.nn.Module) -> None:
    """Evaluate for ever."""
    with torch.no_grad():
        while True:
            model(torch.zeros(8, 1))


def start_late(model: torch.nn.Module) -> None:
    """Train once all is prepared."""
    time.sleep(12.0)
    train(model, Numbers())


def train_forked(model: torch.nn.Module) -> None:
    """Train as Hogwild does."""
    context = mp.get_context("fork")
    trainers = [context.Process(target=train_as_process, args=(n, model)) for n in range(2)]
    for trainer in trainers:
        trainer.start()
    for trainer in trainers:
        trainer.join()


def train_and_evaluate(model: torch.nn.Module) -> None:
    """Train well, and then evaluate for ever."""
    train(model, Numbers(), steps=1_500)
    evaluate(model)


KINDS: dict[str, Callable[[torch.nn.Module], None]] = {
    "steps of 1.5 s": lambda model: train(model, Numbers(), 1.5),
    "steps of 5 s": lambda model: train(model, Numbers(), 5.0),
    "a start-up of 12 s": start_late,
    "an endless start-up": lambda _: prepare(),
    "an endless loop, deaf to SIGTERM": lambda _: count(),
    "training in forked processes": train_forked,
    "training in spawned processes": lambda model: spawn(train_as_process, (model,), nprocs=2),
    "a worker silent from the start": lambda model: train(model, Numbers(0), workers=1),
    "a worker silent after 1,500 batches": lambda model: train(model, Numbers(12_000), workers=1),
    "an endless evaluation": train_and_evaluate,
}

if __name__ == "__main__":
    KINDS[sys.argv[1]](torch.nn.Linear(1, 1).share_memory())
