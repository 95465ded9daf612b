"""Train a deep convolutional network whose batch takes an eighth of the GPU's memory."""

import argparse

import torch
from clock import Clock
from pictures import Pictures
from torch import nn
from torch.utils.data import DataLoader

LAYERS, CHANNELS, SIDE = 24, 64, 64
# Each layer keeps its ReLU's output for the backward pass, which is the next layer's input
BYTES_PER_SAMPLE = LAYERS * CHANNELS * SIDE * SIDE * 4


def own_batch(device: torch.device, share: float = 0.12) -> int:
    """Returns the batch size whose activations take this share of the device."""
    if device.type != "cuda":
        return 8
    _, total = torch.cuda.mem_get_info()
    return max(8, int(share * total / BYTES_PER_SAMPLE) // 8 * 8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--seconds", type=float, help="end after this time of training")
    parser.add_argument("--batch-size", type=int, help="an eighth of the GPU's memory, if left out")
    parser.add_argument("--times", type=int, default=1, help="multiply the batch size")
    parser.add_argument("--layers", type=int, default=LAYERS)
    parser.add_argument("--side", type=int, default=SIDE)
    args = parser.parse_args()

    torch.manual_seed(0)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    batch = args.times * (args.batch_size or own_batch(device))
    loader = DataLoader(Pictures(args.side), batch, shuffle=True, drop_last=True)
    layers = [nn.Conv2d(3, CHANNELS, 3, padding=1), nn.ReLU()]
    for _ in range(args.layers - 1):
        layers += [nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1), nn.ReLU()]
    model = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(CHANNELS, 10))
    model = model.to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    clock = Clock(device, args.seconds)
    for _ in range(args.epochs):
        for x, y in loader:
            x, y = x.to(device).float() / 127.5 - 1, y.to(device)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(x), y)
            loss.backward()
            optimizer.step()
            if over := clock.step(len(x)):
                break
        if over:
            break
    clock.report()


if __name__ == "__main__":
    main()
