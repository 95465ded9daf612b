"""Trains a timm model on digits, with loader, optimizer and schedule as timm's train.py has them."""

import sys

import torch
from PIL import Image
from sklearn.datasets import load_digits
from timm import create_model
from timm.data import create_loader
from timm.optim import create_optimizer_v2
from timm.scheduler import create_scheduler_v2
from timm.utils import AverageMeter
from torch import nn


class Digits(torch.utils.data.Dataset):
    def __init__(self):
        images, self.labels = load_digits(return_X_y=True)
        self.images = (images.reshape(-1, 8, 8) * 15).astype("uint8")
        self.transform = None  # create_loader sets it

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, index):
        image = Image.fromarray(self.images[index]).convert("RGB")
        return self.transform(image), int(self.labels[index])


def train_one_epoch(epoch, model, loader, optimizer, loss_fn, scheduler, accum_steps=1):
    losses = AverageMeter()
    model.train()
    last_accum_steps = len(loader) % accum_steps
    updates_per_epoch = (len(loader) + accum_steps - 1) // accum_steps
    num_updates = epoch * updates_per_epoch
    last_batch_idx = len(loader) - 1
    last_batch_idx_to_accum = len(loader) - last_accum_steps
    optimizer.zero_grad()
    for batch_idx, (images, target) in enumerate(loader):
        need_update = batch_idx == last_batch_idx or (batch_idx + 1) % accum_steps == 0
        if batch_idx >= last_batch_idx_to_accum:
            accum_steps = last_accum_steps
        loss = loss_fn(model(images), target)
        if accum_steps > 1:
            loss /= accum_steps
        loss.backward()
        losses.update(loss.item() * accum_steps, images.size(0))
        if not need_update:
            continue
        optimizer.step()
        num_updates += 1
        optimizer.zero_grad()
        scheduler.step_update(num_updates=num_updates, metric=losses.avg)
    return losses.avg


def main():
    epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    model = create_model("mobilenetv3_small_050", num_classes=10)
    loader = create_loader(
        Digits(),
        input_size=(3, 32, 32),
        batch_size=32,
        is_training=True,
        num_workers=1,
        device=torch.device("cpu"),
    )
    optimizer = create_optimizer_v2(model, opt="sgd", lr=0.05, momentum=0.9)
    scheduler, epochs = create_scheduler_v2(
        optimizer, sched="cosine", num_epochs=epochs, updates_per_epoch=len(loader)
    )
    for epoch in range(epochs):
        loss = train_one_epoch(epoch, model, loader, optimizer, nn.CrossEntropyLoss(), scheduler)
        scheduler.step(epoch + 1, loss)
        print(epoch, round(loss, 3), flush=True)


if __name__ == "__main__":
    main()
