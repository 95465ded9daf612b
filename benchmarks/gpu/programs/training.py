"""What the scripts beside it share: options, a clock, pictures of noise, a transformer's block."""

import argparse
import time
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

WARM_STEPS, WARM_S = 3, 0.3


def options(text: str, batch_size: int) -> argparse.ArgumentParser:
    """Returns a parser with the options that all scripts have."""
    parser = argparse.ArgumentParser(description=text)
    parser.add_argument("--epochs", type=int, default=1000)
    parser.add_argument("--seconds", type=float, help="end after this time of training")
    parser.add_argument("--batch-size", type=int, default=batch_size)
    return parser


def best_device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


class Clock:
    """Tells samples per second of a loop that runs free: nothing waits for the device but the end.

    It takes CUDA events on a GPU, the wall clock on a CPU. Training goes on for ``seconds`` after
    the first steps; without them it is never over.
    """

    def __init__(self, device: torch.device, seconds: float | None) -> None:
        self.device, self.seconds = device, seconds
        self.steps, self.samples = 0, 0
        self.began_s = time.perf_counter()
        self.counts_since_s: float | None = None
        self.begin = self._mark()

    def _mark(self) -> torch.cuda.Event | float:
        if self.device.type != "cuda":
            return time.perf_counter()
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def batches(self, loader: DataLoader, epochs: int) -> Iterator[list[Tensor]]:
        """Yields the batches of all epochs until the training is over, and then reports."""
        for _ in range(epochs):
            for batch in loader:
                yield batch
                if self.step(len(batch[0])):
                    self.report()
                    return
        self.report()

    def step(self, samples: int) -> bool:
        """Counts one step; returns whether the training is over."""
        now_s = time.perf_counter()
        self.steps += 1
        if self.counts_since_s is not None:
            self.samples += samples
            return self.seconds is not None and now_s - self.counts_since_s >= self.seconds
        if self.steps >= WARM_STEPS and now_s - self.began_s >= WARM_S:
            self.counts_since_s, self.begin = now_s, self._mark()
        return False

    def report(self) -> None:
        """Prints the rate, the device, and on a GPU the peak of its memory."""
        end = self._mark()
        if isinstance(end, float):
            elapsed_s = end - self.begin
        else:
            torch.cuda.synchronize()
            elapsed_s = self.begin.elapsed_time(end) / 1000
            print(f"peak memory: {torch.cuda.max_memory_reserved()} bytes reserved")
        print(f"device: {self.device}")
        print(f"{self.samples / elapsed_s:.2f} samples/s")


class Pictures(Dataset):
    """Noise in memory: as long as wanted, out of a few hundred different pictures."""

    def __init__(self, side: int, length: int = 50_000, different: int = 512) -> None:
        self.length = length
        self.pictures = torch.randint(0, 255, (different, 3, side, side), dtype=torch.uint8)
        self.labels = torch.randint(0, 10, (different,))

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        which = index % len(self.pictures)
        return self.pictures[which], self.labels[which]


class Block(nn.Module):
    def __init__(self, width: int, heads: int, causal: bool = False) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.mlp(self.norm2(x))
