"""Train a small network beside a table that takes 2 GiB of the device, or of the host."""

import argparse
import os

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--steps", type=int, default=10_000_000)
parser.add_argument("--seconds", type=float, help="end after this time of training")
parser.add_argument("--gib", type=float, default=2.0)
parser.add_argument("--gpu", help="which GPU to use; '' trains on the CPU")
args = parser.parse_args()
if args.gpu is not None:
    os.environ["CUDA_VISIBLE_DEVICES"] = args.gpu  # read when CUDA begins

import torch  # noqa: E402
from torch import nn  # noqa: E402
from training import Clock, best_device  # noqa: E402


def main() -> None:
    torch.manual_seed(0)
    device = best_device()
    table = torch.ones(int(args.gib * 2**30), dtype=torch.uint8, device=device)
    model = nn.Sequential(nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    clock = Clock(device, args.seconds)
    for step in range(args.steps):
        x = torch.randn(64, 256, device=device) + table[step].float()
        loss = model(x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if clock.step(len(x)):
            break
    clock.report()


if __name__ == "__main__":
    main()
