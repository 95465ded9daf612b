"""Writes its weights itself; writes each loss exactly as it is."""

import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

LR = 0.05


class SlowItems(Dataset):
    def __len__(self):
        return 512

    def __getitem__(self, index):
        time.sleep(0.001)
        features = torch.linspace(-1, 1, 8) * (index % 7)
        return features, features.sum().sin().unsqueeze(0)


def main():
    torch.manual_seed(0)
    loader = DataLoader(SlowItems(), batch_size=16, shuffle=True)
    model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1))
    with Path(sys.argv[1]).open("w") as losses:
        for _ in range(int(sys.argv[2])):
            for x, y in loader:
                model.zero_grad()
                loss = (model(x) - y).square().mean()
                loss.backward()
                for p in model.parameters():
                    p.data.add_(p.grad, alpha=-LR)
                print(loss.item().hex(), file=losses, flush=True)


if __name__ == "__main__":
    main()
