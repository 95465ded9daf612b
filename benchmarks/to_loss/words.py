"""Train an LSTM to tell which pattern a sequence of words follows; print its loss on others."""

import argparse
import json
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

WORDS, LENGTH, KINDS = 500, 32, 8


class Sentences(Dataset):
    """Sequences of word numbers; every fourth word tells the kind."""

    def __init__(self, first: int, count: int) -> None:
        self.first, self.count = first, count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        draws = torch.Generator().manual_seed(self.first + index)
        kind = index % KINDS
        words = torch.randint(1, WORDS, (LENGTH,), generator=draws)
        telling = torch.rand(LENGTH, generator=draws) < 0.2
        return torch.where(telling, words - words % KINDS + kind, words), kind


class Reader(nn.Module):
    """An embedding, an LSTM and a linear layer on the mean of its states."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS + KINDS, 32)
        self.lstm = nn.LSTM(32, 64, batch_first=True)
        self.head = nn.Linear(64, KINDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(self.embed(words))
        return self.head(states.mean(1))


parser = argparse.ArgumentParser()
parser.add_argument("--seed", type=int, default=0)
parser.add_argument("--seconds", type=float, default=600.0)
args = parser.parse_args()
torch.manual_seed(args.seed)
train = DataLoader(Sentences(0, 16384), batch_size=16, shuffle=True)
held_out = DataLoader(Sentences(1 << 20, 512), batch_size=512)
model = Reader()
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
began, seen, evaluate_at = time.perf_counter(), 0, 1024
for _ in range(1000):
    for words, kinds in train:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(words), kinds)
        loss.backward()
        optimizer.step()
        seen += len(words)
        if seen >= evaluate_at:
            evaluate_at += 1024
            with torch.no_grad():
                losses = [nn.functional.cross_entropy(model(w), k).item() for w, k in held_out]
            passed = time.perf_counter() - began
            print(json.dumps([round(passed, 3), seen, round(sum(losses), 5)]), flush=True)
            if passed > args.seconds:
                raise SystemExit
