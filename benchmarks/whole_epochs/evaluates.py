"""Train a small net; half of each epoch goes into evaluating it behind four new workers."""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset):
    """Pictures of noise, with random kinds."""

    def __init__(self, count: int, seed: int) -> None:
        draws = torch.Generator().manual_seed(seed)
        self.x = torch.randn(count, 3, 32, 32, generator=draws)
        self.y = torch.randint(0, 10, (count,), generator=draws)

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.x[index] * 2 + 1, self.y[index]


if __name__ == "__main__":
    torch.manual_seed(0)
    train = DataLoader(Pictures(1024, 0), batch_size=16, shuffle=True)
    held_out = DataLoader(Pictures(128, 1), batch_size=16, num_workers=4)
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.ReLU(), nn.Flatten(), nn.Linear(16 * 30 * 30, 10))
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    for epoch in range(int(sys.argv[1])):
        for x, y in train:
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(x), y).backward()
            optimizer.step()
        with torch.no_grad():
            right = sum((model(x).argmax(1) == y).sum().item() for x, y in held_out)
        print(f"epoch {epoch}: {right} right", flush=True)
