"""Train a small character-level GPT on the language reference that ships with Python."""

import argparse
import math
import statistics
import time
from pathlib import Path
from pydoc_data.topics import topics

import torch
from torch import Tensor, nn

CONTEXT = 64  # characters the network sees at once
LAYERS, HEADS, WIDTH = 4, 4, 128
WARMUP_STEPS = 50
LOG_EVERY, EVAL_EVERY, EVAL_BATCHES = 50, 200, 20


class Block(nn.Module):
    """One transformer block: causal self-attention, then an MLP, both on normalised input."""

    def __init__(self) -> None:
        """Builds the layers."""
        super().__init__()
        self.norm_attention = nn.LayerNorm(WIDTH)
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH)
        self.project = nn.Linear(WIDTH, WIDTH)
        self.norm_mlp = nn.LayerNorm(WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: Tensor) -> Tensor:
        """Maps (batch, time, width) to the same shape."""
        qkv = self.qkv(self.norm_attention(x)).unflatten(-1, (3, HEADS, -1))
        q, k, v = qkv.permute(2, 0, 3, 1, 4)  # each (batch, heads, time, width / heads)
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.project(attended.transpose(1, 2).flatten(2))
        out: Tensor = x + self.mlp(self.norm_mlp(x))
        return out


class GPT(nn.Module):
    """A decoder-only transformer whose input and output embeddings are tied."""

    def __init__(self, vocab_size: int) -> None:
        """Builds the layers and draws their weights."""
        super().__init__()
        self.tokens = nn.Embedding(vocab_size, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, vocab_size, bias=False)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
        self.head.weight = self.tokens.weight

    def forward(self, x: Tensor) -> Tensor:
        """Maps (batch, time) token ids to (batch, time, vocab) logits."""
        positions = torch.arange(x.shape[1], device=x.device)
        hidden = self.blocks(self.tokens(x) + self.positions(positions))
        logits: Tensor = self.head(self.norm(hidden))
        return logits


def load_splits() -> tuple[Tensor, Tensor, int]:
    """Returns the training and the validation token ids and the vocabulary size."""
    text = "\n".join(topics.values())
    ids = {char: index for index, char in enumerate(sorted(set(text)))}
    data = torch.tensor([ids[char] for char in text])
    cut = int(0.9 * len(data))
    return data[:cut], data[cut:], len(ids)


def get_batch(split: Tensor, batch_size: int) -> tuple[Tensor, Tensor]:
    """Returns inputs and next-token targets, both (batch, context), from random offsets."""
    offsets = torch.randint(len(split) - CONTEXT, (batch_size, 1))
    windows = split[(offsets + torch.arange(CONTEXT + 1)).to(split.device)]
    return windows[:, :-1], windows[:, 1:]


def loss_of(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Returns the mean cross-entropy in nats per character."""
    return nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())


@torch.no_grad()
def evaluate(model: nn.Module, split: Tensor, batch_size: int) -> float:
    """Returns the mean loss over a few random batches."""
    model.eval()
    batches = (get_batch(split, batch_size) for _ in range(EVAL_BATCHES))
    loss = statistics.mean(loss_of(model, x, y).item() for x, y in batches)
    model.train()
    return loss


def learning_rate(step: int, steps: int, peak: float) -> float:
    """Linear warm-up to the peak, then a cosine down to a tenth of it."""
    cosine = 0.55 + 0.45 * math.cos(math.pi * step / steps)
    return peak * min(step / WARMUP_STEPS, cosine)


def parse_args() -> argparse.Namespace:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--batch-size", type=int, default=16)
    parser.add_argument("--lr", type=float, default=2e-3, help="peak learning rate")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, default=Path("char_gpt.pt"), help="checkpoint path")
    return parser.parse_args()


def main() -> None:
    """Trains, logs and evaluates every so many steps, and saves the weights."""
    args = parse_args()
    torch.manual_seed(args.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    train_split, val_split, vocab_size = load_splits()
    train_split, val_split = train_split.to(device), val_split.to(device)
    model = GPT(vocab_size).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr, weight_decay=0.1)

    rates = []
    loss_sum, samples, start_s = torch.zeros((), device=device), 0, time.perf_counter()
    for step in range(1, args.steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step, args.steps, args.lr)
        x, y = get_batch(train_split, args.batch_size)
        loss = loss_of(model, x, y)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        loss_sum += loss.detach() * x.shape[0]
        samples += x.shape[0]
        if step % LOG_EVERY == 0 or step == args.steps:
            mean_loss = loss_sum.item() / samples  # .item() waits for the device
            rate = samples / (time.perf_counter() - start_s)
            rates.append(rate)
            speed = f"{rate:.1f} samples/s, {rate * CONTEXT:.0f} tokens/s"
            print(f"step {step}: loss {mean_loss:.4f}, {speed}")
            if step % EVAL_EVERY == 0 or step == args.steps:
                val_loss = evaluate(model, val_split, args.batch_size)
                print(f"step {step}: validation loss {val_loss:.4f}")
            loss_sum, samples, start_s = torch.zeros_like(loss_sum), 0, time.perf_counter()
    torch.save(model.state_dict(), args.out)
    if len(rates) > 1:
        rate = statistics.median(rates[1:])
        print(f"training throughput after step {LOG_EVERY}: {rate:.1f} samples/s")


if __name__ == "__main__":
    main()
