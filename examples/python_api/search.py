"""Search from Python: the program is a function, and it reads one knob itself.

Run it with ``python examples/python_api/search.py``. ``train`` takes a parameter named ``config``,
so it receives the config of each trial; the batch size that it reads there is its own business, and
autotune restarts it to change that knob. All other knobs are applied around it, while it runs.
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import autotune

EPOCHS = 40


def train(config: autotune.Config) -> None:
    """Train a classifier of handwritten digits and print its last loss."""
    torch.manual_seed(0)
    digits = load_digits()
    data = TensorDataset(
        torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1) / 16,
        torch.tensor(digits.target),
    )
    loader = DataLoader(data, batch_size=int(config.get("batch_size", 32)), shuffle=True)
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(32, 32, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 64, 10),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(EPOCHS):
        for images, labels in loader:
            loss = nn.functional.cross_entropy(model(images), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(f"last loss {loss.item():.4f}")


def main() -> None:
    """Search, show what was tried, and save the best config."""
    result = autotune.search(
        train,
        budget="2m",
        tune=["batch_size", "precision", "threads"],
        set={"batch_size": [64, 128]},
    )
    for trial in result.trials:  # or pandas.DataFrame(result.trials)
        print(f"{trial['outcome']:>12}  {trial['speedup'] or 0:.2f}x  {trial['why']}")
    low, high = result.speedup.low, result.speedup.high
    print(f"{result.finding}: {result.speedup.estimate:.2f}x [{low:.2f}, {high:.2f}]")
    print(f"best: {result.best}")
    if result.finding == "faster":
        print(f"saved to {result.save('best.yaml')}")


if __name__ == "__main__":
    main()
