"""Train a ResNet-18 to tell from which corner of which photo a JPEG patch was cut.

The first run cuts the patches from scikit-learn's two bundled photos into the data folder, so
training and test patches overlap: the accuracy says that the model learns, not that it generalises.
"""

import argparse
import random
import statistics
import tempfile
import time
from pathlib import Path

import torch
from PIL import Image
from sklearn.datasets import load_sample_images
from torch import Tensor, nn
from torch.utils.data import DataLoader
from torchvision import transforms
from torchvision.datasets import ImageFolder
from torchvision.models import resnet18

Loader = DataLoader[tuple[Tensor, Tensor]]

PATCHES_PER_CLASS = {"train": 192, "test": 48}
PATCH_SIZE = 256
CROP_SIZE = 32


def cut_patch(quadrant: Image.Image, rng: random.Random) -> Image.Image:
    """Returns a square of random place and scale, resized to the patch size."""
    side = rng.randint(96, min(quadrant.size))
    left = rng.randint(0, quadrant.width - side)
    top = rng.randint(0, quadrant.height - side)
    box = (left, top, left + side, top + side)
    return quadrant.resize((PATCH_SIZE, PATCH_SIZE), Image.Resampling.BICUBIC, box=box)


def write_patches(folder: Path) -> None:
    """Writes folder/{train,test}/<photo>_<quadrant>/<number>.jpg, the same files every time."""
    rng = random.Random(0)
    bundle = load_sample_images()
    for name, pixels in zip(bundle.filenames, bundle.images, strict=True):
        photo = Image.fromarray(pixels)
        width, height = photo.width // 2, photo.height // 2
        for quadrant in range(4):
            left, top = quadrant % 2 * width, quadrant // 2 * height
            corner = photo.crop((left, top, left + width, top + height))
            for split, count in PATCHES_PER_CLASS.items():
                class_folder = folder / split / f"{Path(name).stem}_{quadrant}"
                class_folder.mkdir(parents=True)
                for number in range(count):
                    cut_patch(corner, rng).save(class_folder / f"{number:04d}.jpg", quality=90)


def prepare_data(folder: Path) -> None:
    """Creates the data folder whole or, when interrupted, not at all."""
    if folder.exists():
        return
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{folder.name}.part-", dir=folder.parent) as part:
        write_patches(Path(part, "patches"))
        Path(part, "patches").rename(folder)


def build_datasets(folder: Path) -> tuple[ImageFolder, ImageFolder]:
    """Returns the training set, with augmentation, and the test set, without."""
    jitter = transforms.ColorJitter(brightness=0.2, contrast=0.2, saturation=0.2, hue=0.05)
    crop = transforms.RandomResizedCrop(CROP_SIZE, scale=(0.25, 1.0))
    flip = transforms.RandomHorizontalFlip()
    resize = transforms.Resize(CROP_SIZE)
    normalize = transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))  # ImageNet's
    augment = transforms.Compose([jitter, crop, flip, transforms.ToTensor(), normalize])
    plain = transforms.Compose([resize, transforms.ToTensor(), normalize])
    return ImageFolder(folder / "train", augment), ImageFolder(folder / "test", plain)


def train_epoch(
    model: nn.Module, loader: Loader, optimizer: torch.optim.Optimizer, device: torch.device
) -> tuple[float, float]:
    """Trains for one epoch and returns the mean loss and the throughput in samples/s."""
    model.train()
    loss_sum, samples = torch.zeros((), device=device), 0
    start_s = time.perf_counter()
    for images, labels in loader:
        x, y = images.to(device), labels.to(device)
        loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        loss_sum += loss.detach() * x.shape[0]
        samples += x.shape[0]
    mean_loss = loss_sum.item() / samples  # .item() waits for the device, so the clock is right
    return mean_loss, samples / (time.perf_counter() - start_s)


@torch.no_grad()
def evaluate(model: nn.Module, loader: Loader, device: torch.device) -> float:
    """Returns the accuracy in 0..1."""
    model.eval()
    correct, samples = 0, 0
    for images, labels in loader:
        x, y = images.to(device), labels.to(device)
        correct += int((model(x).argmax(dim=1) == y).sum())
        samples += x.shape[0]
    return correct / samples


def parse_args() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=Path(__file__).parent / "data")
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=0.02, help="initial learning rate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--out", type=Path, default=Path("photos_resnet.pt"), help="checkpoint path"
    )
    return parser.parse_args()


def main() -> None:
    """Prepares the data, trains, evaluates after every epoch and saves the weights."""
    args = parse_args()
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    prepare_data(args.data)
    train_set, test_set = build_datasets(args.data)
    train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True)
    test_loader = DataLoader(test_set, batch_size=args.batch_size)
    model = resnet18(num_classes=len(train_set.classes)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=0.9, weight_decay=1e-4)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=args.epochs)

    rates = []
    for epoch in range(1, args.epochs + 1):
        loss, rate = train_epoch(model, train_loader, optimizer, device)
        scheduler.step()
        accuracy = evaluate(model, test_loader, device)
        rates.append(rate)
        print(f"epoch {epoch}: loss {loss:.4f}, accuracy {accuracy:.4f}, {rate:.1f} samples/s")
    torch.save(model.state_dict(), args.out)
    if len(rates) > 1:
        print(f"training throughput after epoch 1: {statistics.median(rates[1:]):.1f} samples/s")


if __name__ == "__main__":
    main()
