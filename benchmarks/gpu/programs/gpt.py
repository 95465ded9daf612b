"""Train a small GPT on characters; its kernels are short, so launching them takes the time."""

import torch
from torch import Tensor, nn
from training import Block, Clock, best_device, options


class GPT(nn.Module):
    def __init__(self, letters: int, length: int, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.letters = nn.Embedding(letters, width)
        self.places = nn.Parameter(torch.zeros(1, length, width))
        self.blocks = nn.Sequential(*(Block(width, heads, causal=True) for _ in range(depth)))
        self.head = nn.Sequential(nn.LayerNorm(width), nn.Linear(width, letters))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.blocks(self.letters(tokens) + self.places))


def main() -> None:
    parser = options(__doc__, batch_size=8)
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--depth", type=int, default=6)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--fused", action="store_true")
    parser.add_argument("--compile", choices=["default", "reduce-overhead"])
    args = parser.parse_args()

    torch.manual_seed(0)
    device = best_device()
    text = torch.randint(0, 65, (1_000_000,))
    model = GPT(65, args.length, args.width, args.depth, 4).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=args.fused or None)
    forward = torch.compile(model, mode=args.compile) if args.compile else model
    clock = Clock(device, args.seconds)
    for _ in range(args.epochs * 10_000):
        starts = torch.randint(len(text) - args.length - 1, (args.batch_size,)).tolist()
        pieces = torch.stack([text[i : i + args.length + 1] for i in starts]).to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=args.bf16):
            logits = forward(pieces[:, :-1])
            loss = nn.functional.cross_entropy(logits.flatten(0, 1), pieces[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if clock.step(len(pieces)):
            break
    clock.report()


if __name__ == "__main__":
    main()
