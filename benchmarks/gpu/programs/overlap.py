"""Train a ResNet-18 on large batches, with bookkeeping in Python while a batch is copied."""

import argparse

import torch
from clock import Clock
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.models import resnet18


class Patches(Dataset):
    """Crops of one large picture at random places: cheap to load, 0.6 MB a sample."""

    def __init__(self, side: int) -> None:
        self.side = side
        self.picture = torch.randn(3, 2 * side, 2 * side)

    def __len__(self) -> int:
        return 50_000

    def __getitem__(self, index: int):
        top, left = index % self.side, (index * 7) % self.side
        crop = self.picture[:, top : top + self.side, left : left + self.side]
        return crop.clone(), index % 10, index


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--seconds", type=float, help="end after this time of training")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--tracked", type=int, default=200_000, help="values kept in Python")
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--pin-memory", action="store_true")
    parser.add_argument("--non-blocking", action="store_true")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    loader = DataLoader(
        Patches(args.side),
        args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        pin_memory=args.pin_memory,
        drop_last=True,
    )
    model = resnet18(num_classes=10).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    tracked = [0.0] * args.tracked
    clock = Clock(device, args.seconds)
    for _ in range(args.epochs):
        for images, labels, indices in loader:
            seen = indices.tolist()
            images = images.to(device, non_blocking=args.non_blocking)
            labels = labels.to(device, non_blocking=args.non_blocking)
            # how often each sample was seen lately, which needs nothing of the device
            tracked = [0.999 * value for value in tracked]
            for index in seen:
                tracked[index % args.tracked] += 1.0
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(images), labels)
            loss.backward()
            optimizer.step()
            if over := clock.step(len(images)):
                break
        if over:
            break
    clock.report()


if __name__ == "__main__":
    main()
