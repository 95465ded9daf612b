"""Trains in processes that it starts by multiprocessing, one after the other."""

import sys

import torch
import torch.multiprocessing as mp
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


def train(fold: int) -> None:
    torch.manual_seed(fold)
    torch.set_num_threads(1)
    features = torch.randn(4096, 16)
    loader = DataLoader(TensorDataset(features, features.sum(1)), batch_size=32, shuffle=True)
    model = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    steps = 0
    while steps < 128:
        for x, y in loader:
            steps += 1
            loss = nn.functional.mse_loss(model(x).squeeze(1), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print(f"fold {fold}: {steps} steps of {len(x)}", flush=True)


if __name__ == "__main__":
    context = mp.get_context(sys.argv[1])
    for fold in range(2):
        trainer = context.Process(target=train, args=(fold,))
        trainer.start()
        trainer.join()
