"""Train a ResNet-18 on JPEG files that a DataLoader decodes and augments."""

import io

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.utils.data import DataLoader, Dataset
from torchvision.models import resnet18
from torchvision.transforms import v2
from training import Clock, best_device, options


def photograph(rng: np.random.Generator, side: int) -> bytes:
    """Returns a JPEG of a few smooth blobs."""
    small = rng.integers(0, 255, (24, 32, 3), dtype=np.uint8)
    image = Image.fromarray(small).resize((side * 4 // 3, side), Image.Resampling.BICUBIC)
    file = io.BytesIO()
    image.save(file, "JPEG", quality=90)
    return file.getvalue()


class Photographs(Dataset):
    def __init__(self, different: int, side: int, crop: int) -> None:
        rng = np.random.default_rng(0)
        self.files = [photograph(rng, side) for _ in range(different)]
        self.labels = rng.integers(0, 100, different)
        self.transform = v2.Compose(
            [
                v2.RandomResizedCrop(crop),
                v2.RandomHorizontalFlip(),
                v2.ToImage(),
                v2.ToDtype(torch.float32, scale=True),
                v2.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
            ]
        )

    def __len__(self) -> int:
        return 20_000

    def __getitem__(self, index: int):
        which = index % len(self.files)
        image = Image.open(io.BytesIO(self.files[which])).convert("RGB")
        return self.transform(image), int(self.labels[which])


def main() -> None:
    parser = options(__doc__, batch_size=64)
    parser.add_argument("--different", type=int, default=64)
    parser.add_argument("--side", type=int, default=375)
    parser.add_argument("--crop", type=int, default=224)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--pin-memory", action="store_true")
    args = parser.parse_args()

    torch.manual_seed(0)
    device = best_device()
    photographs = Photographs(args.different, args.side, args.crop)
    loader = DataLoader(
        photographs,
        args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        pin_memory=args.pin_memory,
        drop_last=True,
    )
    model = resnet18(num_classes=100).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    loss_of = nn.CrossEntropyLoss()
    for images, labels in Clock(device, args.seconds).batches(loader, args.epochs):
        images, labels = images.to(device), labels.to(device)
        optimizer.zero_grad()
        loss = loss_of(model(images), labels)
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
