"""A data set of noise in memory: as long as wanted, out of a few hundred different pictures."""

import torch
from torch import Tensor
from torch.utils.data import Dataset


class Pictures(Dataset):
    def __init__(self, side: int, length: int = 50_000, different: int = 512) -> None:
        self.length = length
        self.pictures = torch.randint(0, 255, (different, 3, side, side), dtype=torch.uint8)
        self.labels = torch.randint(0, 10, (different,))

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        which = index % len(self.pictures)
        return self.pictures[which], self.labels[which]
