"""Fits digits by a fastai Learner: its loaders and its optimizer are classes of fastai's own."""

import sys

import numpy as np
from fastai.vision.all import (
    CategoryBlock,
    CrossEntropyLossFlat,
    DataBlock,
    ImageBlock,
    Learner,
    PILImageBW,
    RandomSplitter,
    accuracy,
    nn,
)
from sklearn.datasets import load_digits

epochs = int(sys.argv[1]) if len(sys.argv) > 1 else 50
images, labels = load_digits(return_X_y=True)
images = (images.reshape(-1, 8, 8) * 15).astype(np.uint8)


def get_items(_):
    return range(len(labels))


def get_x(index):
    return images[index]


def get_y(index):
    return int(labels[index])


def main():
    block = DataBlock(
        blocks=(ImageBlock(PILImageBW), CategoryBlock),
        get_items=get_items,
        get_x=get_x,
        get_y=get_y,
        splitter=RandomSplitter(seed=0),
    )
    dls = block.dataloaders(None, bs=32, num_workers=1, device="cpu")
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.Flatten(),
        nn.Linear(32 * 16, 10),
    )  # fmt: skip
    learn = Learner(dls, model, loss_func=CrossEntropyLossFlat(), metrics=accuracy)
    with learn.no_bar():
        learn.fit_one_cycle(epochs, 1e-3)


if __name__ == "__main__":
    main()
