"""A trainer class over ``next(cycle(loader))``, as lucidrains' repositories have it."""

import sys

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset


def cycle(dl):
    while True:
        for data in dl:
            yield data


class Images(Dataset):
    def __init__(self):
        self.images = load_digits().images

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return torch.tensor(self.images[index]).float()[None] / 8 - 1


class Trainer:
    def __init__(self, model, train_num_steps, gradient_accumulate_every=2):
        self.model = model
        self.dl = cycle(DataLoader(Images(), batch_size=16, shuffle=True, num_workers=1))
        self.opt = torch.optim.Adam(model.parameters(), lr=1e-3)
        self.train_num_steps = train_num_steps
        self.gradient_accumulate_every = gradient_accumulate_every
        self.step = 0

    def train(self):
        while self.step < self.train_num_steps:
            self.model.train()
            total_loss = 0.0
            for _ in range(self.gradient_accumulate_every):
                data = next(self.dl)
                noise = torch.randn_like(data)
                loss = (self.model(data + 0.5 * noise) - noise).square().mean()
                loss = loss / self.gradient_accumulate_every
                total_loss += loss.item()
                loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.opt.step()
            self.opt.zero_grad()
            self.step += 1
            if self.step % 100 == 0:
                print(self.step, round(total_loss, 3), flush=True)


if __name__ == "__main__":
    steps = 20 * int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    net = nn.Sequential(
        nn.Conv2d(1, 32, 3, padding=1), nn.SiLU(),
        nn.Conv2d(32, 32, 3, padding=1), nn.SiLU(),
        nn.Conv2d(32, 1, 3, padding=1),
    )  # fmt: skip
    Trainer(net, steps).train()
