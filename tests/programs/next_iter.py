"""Takes a new iterator for every step; its batches are lists of images of uneven size."""

import dataclasses

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


@dataclasses.dataclass
class Options:
    steps: int = 10**9


assert dataclasses.fields(Options)[0].type is int, "the script is compiled as it is written"


class Images(Dataset):
    def __len__(self):
        return 640

    def __getitem__(self, index):
        return torch.randn(3, 8 + index % 2, 8)


loader = DataLoader(Images(), batch_size=16, shuffle=True, collate_fn=list)
model = nn.Conv2d(3, 4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-4)
for _ in range(Options.steps):
    images = next(iter(loader))
    loss = sum(model(image).square().mean() for image in images)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
