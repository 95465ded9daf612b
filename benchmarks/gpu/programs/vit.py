"""Train a small vision transformer in fp32."""

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from training import Block, Clock, Pictures, best_device, options


class ViT(nn.Module):
    def __init__(self, side: int, patch: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, patch, stride=patch)
        self.positions = nn.Parameter(torch.zeros(1, (side // patch) ** 2, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 100))

    def forward(self, images: Tensor) -> Tensor:
        x = self.patches(images).flatten(2).transpose(1, 2) + self.positions
        return self.head(self.blocks(x).mean(1))


def main() -> None:
    parser = options(__doc__, batch_size=128)
    parser.add_argument("--side", type=int, default=224)
    parser.add_argument("--depth", type=int, default=12)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--tf32", action="store_true")
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--fused", action="store_true")
    args = parser.parse_args()

    torch.manual_seed(0)
    torch.set_float32_matmul_precision("high" if args.tf32 else "highest")
    device = best_device()
    loader = DataLoader(
        Pictures(args.side),
        args.batch_size,
        shuffle=True,
        num_workers=args.workers,
        pin_memory=device.type == "cuda",
        persistent_workers=args.workers > 0,
    )
    model = ViT(args.side, 16, args.width, args.depth, args.width // 64).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=args.fused or None)
    for x, y in Clock(device, args.seconds).batches(loader, args.epochs):
        x, y = x.to(device, non_blocking=True), y.to(device, non_blocking=True)
        with torch.autocast(device.type, torch.bfloat16, enabled=args.bf16):
            logits = model(x.float() / 127.5 - 1)
            loss = nn.functional.cross_entropy(logits, y, label_smoothing=0.1)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


if __name__ == "__main__":
    main()
