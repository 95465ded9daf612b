"""Trains by Lightning's Trainer, for two short epochs with validation; maybe on N devices."""

import sys

import lightning
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 3))

    def forward(self, x):
        return self.layers(x)

    def training_step(self, batch, _number):
        x, y = batch
        loss = nn.functional.cross_entropy(self(x), y)
        self.log("loss", loss)
        return loss

    def validation_step(self, batch, _number):
        x, y = batch
        self.log("error", (self(x).argmax(1) != y).float().mean())

    def configure_optimizers(self):
        optimizer = torch.optim.AdamW(self.parameters(), lr=1e-3)
        return [optimizer], [torch.optim.lr_scheduler.StepLR(optimizer, 1, gamma=0.5)]


def loader(samples):
    data = TensorDataset(torch.randn(samples, 8), torch.randint(3, (samples,)))
    return DataLoader(data, batch_size=16, shuffle=samples > 200)


if __name__ == "__main__":
    devices = int(sys.argv[1]) if sys.argv[1:] and sys.argv[1].isdigit() else "auto"
    trainer = lightning.Trainer(
        max_epochs=2,
        accelerator="cpu",
        devices=devices,
        logger=False,
        enable_progress_bar=False,
    )
    trainer.fit(Classifier(), loader(640), loader(160))
    print("ended after", trainer.global_step, "steps")
