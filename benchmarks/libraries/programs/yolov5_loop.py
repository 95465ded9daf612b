"""A loop as in YOLOv5's train.py: an endless loader with workers that stay, warm-up, EMA."""

import copy
import sys

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.optim import lr_scheduler
from torch.utils.data import DataLoader, TensorDataset


class RepeatSampler:
    """Goes through a sampler again and again."""

    def __init__(self, sampler):
        self.sampler = sampler

    def __iter__(self):
        while True:
            yield from iter(self.sampler)


class InfiniteDataLoader(DataLoader):
    """Keeps one iterator for all epochs, so that its workers stay."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        object.__setattr__(self, "batch_sampler", RepeatSampler(self.batch_sampler))
        self.iterator = super().__iter__()

    def __len__(self):
        return len(self.batch_sampler.sampler)

    def __iter__(self):
        for _ in range(len(self)):
            yield next(self.iterator)


class ModelEMA:
    def __init__(self, model, decay=0.999):
        self.ema = copy.deepcopy(model).eval()
        self.decay = decay
        for p in self.ema.parameters():
            p.requires_grad_(False)

    def update(self, model):
        with torch.no_grad():
            state = model.state_dict()
            for name, value in self.ema.state_dict().items():
                if value.dtype.is_floating_point:
                    value *= self.decay
                    value += (1 - self.decay) * state[name].detach()


def main():
    epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    images, labels = load_digits(return_X_y=True)
    data = TensorDataset(
        torch.tensor(images).float().view(-1, 1, 8, 8) / 16, torch.tensor(labels)
    )
    loader = InfiniteDataLoader(data, batch_size=16, shuffle=True, num_workers=1)
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.SiLU(),
        nn.Conv2d(16, 32, 3), nn.BatchNorm2d(32), nn.SiLU(),
        nn.Flatten(), nn.Linear(32 * 16, 10),
    )  # fmt: skip
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.937, nesterov=True)
    scheduler = lr_scheduler.LambdaLR(optimizer, lambda e: (1 - e / epochs) * 0.99 + 0.01)
    ema = ModelEMA(model)
    compute_loss = nn.CrossEntropyLoss()
    nb = len(loader)
    nominal, last_step = 64, -1
    accumulate = max(round(nominal / 16), 1)
    for epoch in range(epochs):
        model.train()
        mean_loss = 0.0
        optimizer.zero_grad()
        for i, (imgs, targets) in enumerate(loader):
            ni = i + nb * epoch
            loss = compute_loss(model(imgs), targets)
            loss.backward()
            if ni - last_step >= accumulate:
                torch.nn.utils.clip_grad_norm_(model.parameters(), max_norm=10.0)
                optimizer.step()
                optimizer.zero_grad()
                ema.update(model)
                last_step = ni
            mean_loss = (mean_loss * i + loss.item()) / (i + 1)
        scheduler.step()
        print(epoch, round(mean_loss, 3), flush=True)


if __name__ == "__main__":
    main()
