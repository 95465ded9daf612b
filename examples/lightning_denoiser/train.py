"""Train a denoising network with Lightning's Trainer on patches of scikit-learn's two photos.

As in DnCNN (Zhang et al., 2017), the network predicts the noise that was added to a patch.
"""

import argparse

import lightning
import torch
from sklearn.datasets import load_sample_images
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torchvision.transforms import v2

PATCH_SIZE, NOISE = 48, 0.1
WIDTH, LAYERS = 32, 5


class Patches(Dataset[tuple[Tensor, Tensor]]):
    """Random patches of photos, noisy and clean, each (3, 48, 48) in 0..1 without the noise."""

    def __init__(self, photos: Tensor, count: int) -> None:
        """Keeps the photos, (photos, 3, height, width), in memory."""
        self.photos, self.count = photos, count
        self.augment = v2.Compose(
            [
                v2.RandomCrop(2 * PATCH_SIZE),
                v2.RandomHorizontalFlip(),
                v2.Resize(PATCH_SIZE, antialias=True),
                v2.ColorJitter(brightness=0.2, saturation=0.2),
            ]
        )

    def __len__(self) -> int:
        """Returns the number of patches in an epoch."""
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        """Returns a noisy patch and the clean one."""
        clean = self.augment(self.photos[index % len(self.photos)])
        return clean + NOISE * torch.randn_like(clean), clean


class Denoiser(lightning.LightningModule):
    """Convolutions that predict the noise of a patch."""

    def __init__(self, lr: float) -> None:
        """Builds the layers."""
        super().__init__()
        self.lr = lr
        layers: list[nn.Module] = [nn.Conv2d(3, WIDTH, 3, padding=1), nn.ReLU(inplace=True)]
        for _ in range(LAYERS - 2):
            layers += [
                nn.Conv2d(WIDTH, WIDTH, 3, padding=1, bias=False),
                nn.BatchNorm2d(WIDTH),
                nn.ReLU(inplace=True),
            ]
        self.layers = nn.Sequential(*layers, nn.Conv2d(WIDTH, 3, 3, padding=1))

    def forward(self, noisy: Tensor) -> Tensor:
        """Maps (batch, 3, height, width) noisy patches to clean ones."""
        clean: Tensor = noisy - self.layers(noisy)
        return clean

    def training_step(self, batch: tuple[Tensor, Tensor], _number: int) -> Tensor:
        """Returns the mean squared error of a batch."""
        noisy, clean = batch
        return nn.functional.mse_loss(self(noisy), clean)

    def validation_step(self, batch: tuple[Tensor, Tensor], _number: int) -> None:
        """Logs the peak signal-to-noise ratio in dB."""
        noisy, clean = batch
        error = nn.functional.mse_loss(self(noisy), clean)
        self.log("psnr_db", -10 * torch.log10(error))

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Returns the optimizer."""
        return torch.optim.AdamW(self.parameters(), lr=self.lr)


def load_photos() -> tuple[Tensor, Tensor]:
    """Returns the left part of both photos for training, the right one for validation."""
    photos = torch.stack([torch.tensor(image) for image in load_sample_images().images])
    scaled = photos.permute(0, 3, 1, 2).float() / 255
    cut = scaled.shape[-1] * 3 // 4
    return scaled[..., :cut].contiguous(), scaled[..., cut:].contiguous()


def parse_args() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=8)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args()


def main() -> None:
    """Trains and validates after each epoch."""
    args = parse_args()
    lightning.seed_everything(args.seed)
    train_photos, test_photos = load_photos()
    train_loader = DataLoader(Patches(train_photos, 512), args.batch_size, shuffle=True)
    test_loader = DataLoader(Patches(test_photos, 64), args.batch_size)
    trainer = lightning.Trainer(
        max_epochs=args.epochs,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
    )
    trainer.fit(Denoiser(args.lr), train_loader, test_loader)
    print(f"PSNR {trainer.callback_metrics['psnr_db']:.2f} dB after {trainer.global_step} steps")


if __name__ == "__main__":
    main()
