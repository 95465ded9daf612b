"""Train a small convolutional net on augmented digits; print its loss on those it does not see."""

import argparse
import json
import time

import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2


class Digits(Dataset):
    """Images of 8x8 pixels, scaled up and turned a little."""

    def __init__(self, first: int, last: int, transform: v2.Transform) -> None:
        pixels, labels = load_digits(return_X_y=True)
        self.images = torch.tensor(pixels[first:last] / 16, dtype=torch.float32).view(-1, 1, 8, 8)
        self.labels, self.transform = torch.tensor(labels[first:last]), transform

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[torch.Tensor, torch.Tensor]:
        return self.transform(self.images[index]), self.labels[index]


parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--seconds", type=float, default=600.0)
args = parser.parse_args()
torch.manual_seed(args.seed)
larger = v2.Resize(16)
turned = v2.Compose([larger, v2.RandomAffine(15, (0.1, 0.1))])
train = DataLoader(Digits(0, 1400, turned), batch_size=16, shuffle=True)
held_out = DataLoader(Digits(1400, 1797, larger), batch_size=397)
model = nn.Sequential(
    nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1),
    nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(32 * 16, 10),
)  # fmt: skip
optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
began, seen, evaluate_at = time.perf_counter(), 0, 1024
for _ in range(1000):
    for images, labels in train:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        seen += len(images)
        if seen >= evaluate_at:
            evaluate_at += 1024
            with torch.no_grad():
                losses = [nn.functional.cross_entropy(model(x), y).item() for x, y in held_out]
            passed = time.perf_counter() - began
            print(json.dumps([round(passed, 3), seen, round(sum(losses), 5)]), flush=True)
            if passed > args.seconds:
                raise SystemExit
