"""Train a small convolutional network on scikit-learn's bundled handwritten digits."""

import argparse
import statistics
import time
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

Loader = DataLoader[tuple[Tensor, Tensor]]

IMAGE_SIZE = 32
MEAN, STD = 0.305, 0.376  # of the 8x8 pixels scaled to 0..1


class Digits(Dataset[tuple[Tensor, Tensor]]):
    """Digits of shape (1, 8, 8), scaled from 0..16 to 0..1 and transformed one by one."""

    def __init__(self, pixels: np.ndarray, labels: np.ndarray, transform: v2.Transform) -> None:
        """Keeps the whole set in memory as tensors."""
        self.images = torch.tensor(pixels, dtype=torch.float32).view(-1, 1, 8, 8) / 16
        self.labels = torch.tensor(labels)
        self.transform = transform

    def __len__(self) -> int:
        """Returns the number of digits."""
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Returns one transformed image and its label."""
        return self.transform(self.images[index]), self.labels[index]


def build_datasets() -> tuple[Digits, Digits]:
    """Returns the training set, with augmentation, and the test set, without."""
    pixels, labels = load_digits(return_X_y=True)
    train_x, test_x, train_y, test_y = train_test_split(
        pixels, labels, test_size=0.2, stratify=labels, random_state=0
    )
    resize, normalize = v2.Resize(IMAGE_SIZE), v2.Normalize([MEAN], [STD])
    affine = v2.RandomAffine(degrees=10, translate=(0.1, 0.1), scale=(0.9, 1.1), shear=5)
    erase = v2.RandomErasing(p=0.25, scale=(0.02, 0.1))
    augment = v2.Compose([resize, affine, normalize, erase])
    plain = v2.Compose([resize, normalize])
    return Digits(train_x, train_y, augment), Digits(test_x, test_y, plain)


def conv_block(channels_in: int, channels_out: int) -> nn.Sequential:
    """A convolution that halves height and width."""
    return nn.Sequential(
        nn.Conv2d(channels_in, channels_out, kernel_size=3, padding=1, bias=False),
        nn.BatchNorm2d(channels_out),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
    )


def build_model() -> nn.Module:
    """Returns a network from (batch, 1, 32, 32) images to (batch, 10) logits."""
    return nn.Sequential(
        conv_block(1, 16),
        conv_block(16, 32),
        conv_block(32, 64),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(64 * (IMAGE_SIZE // 8) ** 2, 10),
    )


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
    parser.add_argument("--epochs", type=int, default=25)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--lr", type=float, default=2e-3, help="initial learning rate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("digits_cnn.pt"), help="checkpoint path")
    return parser.parse_args()


def main() -> None:
    """Trains, evaluates after every epoch and saves the weights."""
    args = parse_args()
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_set, test_set = build_datasets()
    train_loader = DataLoader(train_set, batch_size=args.batch_size, shuffle=True)
    test_loader = DataLoader(test_set, batch_size=args.batch_size)
    model = build_model().to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
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
