"""Trains epoch by epoch, and in between does what its argument says: much that trials never see."""

import sys
from itertools import cycle, islice

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

ROLE = sys.argv[1] if len(sys.argv) > 1 else "plain"


def loader(count):
    data = TensorDataset(torch.randn(count, 3, 8, 8), torch.arange(count) % 4)
    return DataLoader(data, batch_size=16, shuffle=count > 64)


def network():
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(8, 4),
    )  # fmt: skip


def evaluate():
    model.eval()
    outputs = torch.zeros(64, 4)
    with torch.no_grad():
        for number, (x, _) in enumerate(valid):
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


if __name__ == "__main__":
    train, valid = loader(1024), loader(64)
    model = network()
    hidden, sizes = [], []
    model[0].register_forward_hook(lambda _m, _i, output: hidden.append(output.detach()))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer)
    for epoch in range(100 if ROLE != "three" else 3):
        batches = islice(cycle(train), 400) if ROLE == "cycle" else train
        for x, y in batches:
            loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            sizes[:] = [len(x)]
            del hidden[:-1]
        scheduler.step(loss.item())
        evaluate()
        save()
        print("epoch", epoch)
