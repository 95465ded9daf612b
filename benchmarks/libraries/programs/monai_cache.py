"""Trains a small MONAI network on made volumes, kept by a CacheDataset."""

import sys

import torch
from monai.data import CacheDataset, DataLoader
from monai.losses import DiceLoss
from monai.networks.nets import UNet
from monai.transforms import Compose, EnsureTyped, RandFlipd, RandGaussianNoised, ScaleIntensityd
from monai.utils import set_determinism

set_determinism(seed=0)


def volume(seed):
    spot = torch.Generator().manual_seed(seed)
    image = torch.rand(1, 16, 16, 16, generator=spot)
    corner = torch.randint(0, 8, (3,), generator=spot).tolist()
    label = torch.zeros(1, 16, 16, 16)
    label[(0, *(slice(at, at + 6) for at in corner))] = 1
    return {"image": image + label, "label": label}


def main():
    epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    transform = Compose(
        [
            ScaleIntensityd(keys="image"),
            RandFlipd(keys=["image", "label"], prob=0.5, spatial_axis=0),
            RandGaussianNoised(keys="image", prob=0.5),
            EnsureTyped(keys=["image", "label"]),
        ]
    )
    volumes = [volume(seed) for seed in range(120)]
    data = CacheDataset(volumes, transform, cache_rate=1.0, progress=False)
    loader = DataLoader(data, batch_size=4, shuffle=True, num_workers=0)
    model = UNet(3, 1, 1, channels=(4, 8), strides=(2,), num_res_units=1)
    loss_function = DiceLoss(sigmoid=True)
    optimizer = torch.optim.Adam(model.parameters(), 1e-3)
    for epoch in range(epochs):
        model.train()
        total = 0.0
        for batch in loader:
            inputs, labels = batch["image"], batch["label"]
            optimizer.zero_grad()
            loss = loss_function(model(inputs), labels)
            loss.backward()
            optimizer.step()
            total += loss.item()
        print(epoch, round(total / len(loader), 3), flush=True)


if __name__ == "__main__":
    main()
