"""Trains epoch by epoch, and in between does what its argument says: much that trials never see."""

import sys
from itertools import cycle, islice

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

ROLE = sys.argv[1] if len(sys.argv) > 1 else "plain"


class Items(Dataset):
    """Knows its epoch, which its workers are told of when they start."""

    epoch = 0

    def __init__(self, count):
        self.images = torch.randn(count, 3, 8, 8)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, index):
        return self.images[index], index % 4, self.epoch


def network():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8, 4),
    )  # fmt: skip


def evaluate():
    model.eval()
    outputs = torch.zeros(64, 4)
    with torch.no_grad():
        for number, (x, _, _) in enumerate(valid):
            scores = model(x)
            if ROLE == "numpy":
                hidden[-1].numpy()
            elif ROLE == "flat":
                torch.stack([w.view(-1).norm() for w in model.parameters()])
            elif ROLE == "buffer":
                outputs[number * sizes[0] : (number + 1) * sizes[0]] = scores
    model.train()


def save():
    plain = network()
    if ROLE == "checkpoint":
        vector = nn.utils.parameters_to_vector(model.parameters())
        nn.utils.vector_to_parameters(vector, plain.parameters())
    torch.save(model.state_dict(), "model.pt")
    plain.load_state_dict(torch.load("model.pt"))


def after(epoch, batches, epochs_seen):
    if ROLE == "counts" and batches != len(train):
        raise AssertionError(f"{batches} batches of {len(train)}")
    if ROLE == "workers" and epochs_seen != {epoch}:
        raise RuntimeError(f"epoch {epoch} got items of {epochs_seen}")
    if ROLE == "hangs" and any(w.dtype == torch.bfloat16 for w in hidden):
        import time

        time.sleep(600)
    evaluate()
    save()


if __name__ == "__main__":
    train = DataLoader(Items(1024), batch_size=16, shuffle=True)
    valid = DataLoader(Items(64), batch_size=16)
    model = network()
    hidden, sizes = [], []
    model[0].register_forward_hook(lambda _m, _i, output: hidden.append(output.detach()))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    for epoch in range(100 if ROLE != "three" else 3):
        seen, count = set(), 0
        train.dataset.epoch = epoch
        batches = islice(cycle(train), 400) if ROLE == "cycle" else train
        for x, y, epochs in batches:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            sizes[:] = [len(x)]
            del hidden[:-1]
            seen |= set(epochs.tolist())
            count += 1
        scheduler.step(loss.item())
        after(epoch, count, seen)
        print("epoch", epoch, "of", count, "batches")
