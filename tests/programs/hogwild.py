"""The processes that this one forks train on shared weights; it waits for them."""

import time

import torch
import torch.multiprocessing as mp
from torch.utils.data import DataLoader, TensorDataset


def train(model: torch.nn.Module) -> None:
    torch.set_num_threads(1)
    loader = DataLoader(TensorDataset(torch.randn(256, 4)), batch_size=8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    while True:
        for (x,) in loader:
            optimizer.zero_grad()
            model(x).square().mean().backward()
            optimizer.step()
            time.sleep(0.01)


if __name__ == "__main__":
    mp.set_start_method("fork")
    model = torch.nn.Linear(4, 1)
    model.share_memory()
    trainers = [mp.Process(target=train, args=(model,)) for _ in range(2)]
    for trainer in trainers:
        trainer.start()
    for trainer in trainers:
        trainer.join()
