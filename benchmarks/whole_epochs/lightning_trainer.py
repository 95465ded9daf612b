"""Train by Lightning's trainer, with a validation after each epoch."""

import sys

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Net(lightning.LightningModule):
    """Two linear layers."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Flatten(), nn.Linear(1024, 256), nn.ReLU(), nn.Linear(256, 10))

    def training_step(self, batch: list[torch.Tensor], _: int) -> torch.Tensor:
        x, y = batch
        return nn.functional.cross_entropy(self.net(x), y)

    def validation_step(self, batch: list[torch.Tensor], _: int) -> None:
        x, y = batch
        self.log("loss", nn.functional.cross_entropy(self.net(x), y))

    def on_train_epoch_start(self) -> None:
        print(f"epoch {self.current_epoch}", flush=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), 0.01)


def data(count: int) -> TensorDataset:
    """Return pictures of noise with random kinds."""
    draws = torch.Generator().manual_seed(count)
    kinds = torch.randint(0, 10, (count,), generator=draws)
    return TensorDataset(torch.randn(count, 32, 32, generator=draws), kinds)


if __name__ == "__main__":
    torch.manual_seed(0)
    trainer = lightning.Trainer(
        max_epochs=int(sys.argv[1]), accelerator="cpu", enable_progress_bar=False, logger=False
    )
    train = DataLoader(data(4096), batch_size=16, shuffle=True)
    trainer.fit(Net(), train, DataLoader(data(2048), batch_size=16))
