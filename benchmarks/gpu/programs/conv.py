"""Train a stack of convolutions on images of one size."""

import torch
from torch import nn
from torch.utils.data import DataLoader
from training import Clock, Pictures, best_device, options


def filling(share: float, bytes_per_sample: int) -> int:
    """Returns the batch size whose activations take this share of the GPU."""
    if not torch.cuda.is_available():
        return 8
    _, total = torch.cuda.mem_get_info()
    return max(8, int(share * total / bytes_per_sample) // 8 * 8)


def main() -> None:
    parser = options(__doc__, batch_size=32)
    parser.add_argument("--fill", type=float, help="share of the GPU, in place of a batch size")
    parser.add_argument("--times", type=int, default=1, help="multiply the batch size")
    parser.add_argument("--layers", type=int, default=9)
    parser.add_argument("--side", type=int, default=64)
    parser.add_argument("--channels", type=int, default=64)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--cudnn-benchmark", action="store_true")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--bf16", action="store_true")
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.backends.cudnn.benchmark = args.cudnn_benchmark
    device = best_device()
    layout = torch.channels_last if args.channels_last else torch.contiguous_format
    # each layer keeps its ReLU's output for the backward pass, which is the next layer's input
    bytes_per_sample = args.layers * args.channels * args.side**2 * 4
    batch = filling(args.fill, bytes_per_sample) if args.fill else args.batch_size
    loader = DataLoader(
        Pictures(args.side),
        args.times * batch,
        shuffle=True,
        num_workers=args.workers,
        pin_memory=device.type == "cuda",
        drop_last=True,
    )
    layers = [nn.Conv2d(3, args.channels, 3, padding=1), nn.ReLU()]
    for _ in range(args.layers - 1):
        layers += [nn.Conv2d(args.channels, args.channels, 3, padding=1), nn.ReLU()]
    model = nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(args.channels, 10)
    )
    model = model.to(device, memory_format=layout)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for x, y in Clock(device, args.seconds).batches(loader, args.epochs):
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        x = (x.float() / 127.5 - 1).to(memory_format=layout)
        with torch.autocast(device.type, torch.bfloat16, enabled=args.bf16):
            loss = nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
