"""A program whose speed is known: with one thread its step does a given share of extra work.

    python known_effect.py EXTRA_PCT

The work is counted, not timed: so many rounds of the same Python loop, which torch's number of
threads does not touch. What else is in a step is some 0.1 ms of 20.
"""

from __future__ import annotations

import sys

import torch
from torch.nn.functional import mse_loss
from torch.utils.data import DataLoader, TensorDataset

ROUNDS = 400  # of some 50 us


def work(rounds: int) -> int:
    """Do so many rounds of work."""
    total = 0
    for _ in range(rounds):
        for number in range(1000):
            total += number
    return total


def main() -> None:
    """Train for ever."""
    extra = round(ROUNDS * float(sys.argv[1]) / 100)
    loader = DataLoader(TensorDataset(torch.randn(4096, 4), torch.randn(4096, 1)), batch_size=32)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6)
    for _ in range(10**6):
        for x, y in loader:
            work(ROUNDS + (extra if torch.get_num_threads() == 1 else 0))
            optimizer.zero_grad()
            mse_loss(model(x), y).backward()
            optimizer.step()


if __name__ == "__main__":
    main()
