"""Train a stack of convolutions on images of one size."""

import argparse

import torch
from clock import Clock
from pictures import Pictures
from torch import nn
from torch.utils.data import DataLoader


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=100_000)
    parser.add_argument("--seconds", type=float, help="end after this time of training")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument("--channels", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--cudnn-benchmark", action="store_true")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--bf16", action="store_true")
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = args.cudnn_benchmark
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    layout = torch.channels_last if args.channels_last else torch.contiguous_format
    loader = DataLoader(
        Pictures(args.side),
        args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        pin_memory=device.type == "cuda",
        drop_last=True,
    )
    layers = [nn.Conv2d(3, args.channels, 3, padding=1), nn.ReLU()]
    for _ in range(8):
        layers += [nn.Conv2d(args.channels, args.channels, 3, padding=1), nn.ReLU()]
    model = nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(args.channels, 10)
    )
    model = model.to(device, memory_format=layout)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    clock = Clock(device, args.seconds)
    for _ in range(args.epochs):
        for x, y in loader:
            x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
            x = (x.float() / 127.5 - 1).to(memory_format=layout)
            with torch.autocast(device.type, torch.bfloat16, enabled=args.bf16):
                loss = nn.functional.cross_entropy(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if over := clock.step(len(x)):
                break
        if over:
            break
    clock.report()


if __name__ == "__main__":
    main()
