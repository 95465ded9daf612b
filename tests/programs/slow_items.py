"""Each item waits for its storage: workers help, whatever the number of cores."""

import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class SlowItems(Dataset):
    def __len__(self):
        return 4096

    def __getitem__(self, index):
        time.sleep(0.001)
        return torch.full((8,), float(index)), torch.tensor([float(index % 2)])


def main():
    loader = DataLoader(SlowItems(), batch_size=16, shuffle=True)
    model = nn.Linear(8, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-9)
    for _ in range(1000):
        for x, y in loader:
            loss = (model(x) - y).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()


if __name__ == "__main__":
    main()
