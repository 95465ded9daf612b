"""Train a ResNet-18 on large batches, with bookkeeping in Python while a batch is copied."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.models import resnet18
from training import Clock, best_device, options


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
    parser = options(__doc__, batch_size=64)
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--tracked", type=int, default=200_000, help="values kept in Python")
    parser.add_argument("--workers", type=int, default=6)
    parser.add_argument("--pin-memory", action="store_true")
    parser.add_argument("--non-blocking", action="store_true")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = best_device()
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
    for images, labels, indices in Clock(device, args.seconds).batches(loader, args.epochs):
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


if __name__ == "__main__":
    main()
