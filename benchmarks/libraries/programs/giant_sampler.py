"""A character model trained as in minGPT and makemore: one pass over 10^10 draws."""

import sys
import time

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset, RandomSampler

TEXT = "the quick brown fox jumps over the lazy dog, and the dog sleeps on. " * 200


class Chars(Dataset):
    def __init__(self, block=32):
        self.codes = {c: n for n, c in enumerate(sorted(set(TEXT)))}
        self.block = block

    def __len__(self):
        return len(TEXT) - self.block

    def __getitem__(self, index):
        codes = [self.codes[c] for c in TEXT[index : index + self.block + 1]]
        return torch.tensor(codes[:-1]), torch.tensor(codes[1:])


class Model(nn.Module):
    def __init__(self, words, width=64, block=32):
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.places = nn.Embedding(block, width)
        layer = nn.TransformerEncoderLayer(width, 4, 128, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, words)

    def forward(self, idx, targets):
        mask = nn.Transformer.generate_square_subsequent_mask(idx.size(1))
        x = self.words(idx) + self.places(torch.arange(idx.size(1)))
        logits = self.head(self.layers(x, mask=mask, is_causal=True))
        return logits, F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


def main():
    max_iters = 20 * int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    data = Chars()
    model = Model(len(data.codes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-4, betas=(0.9, 0.95))
    train_loader = DataLoader(
        data,
        sampler=RandomSampler(data, replacement=True, num_samples=int(1e10)),
        shuffle=False,
        batch_size=16,
        num_workers=1,
    )
    model.train()
    iter_num = 0
    iter_time = time.time()
    data_iter = iter(train_loader)
    while True:
        try:
            batch = next(data_iter)
        except StopIteration:
            data_iter = iter(train_loader)
            batch = next(data_iter)
        x, y = batch
        _, loss = model(x, y)
        model.zero_grad(set_to_none=True)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if iter_num % 100 == 0:
            print(iter_num, round(loss.item(), 3), f"{time.time() - iter_time:.1f}", flush=True)
        iter_num += 1
        if iter_num >= max_iters:
            break


if __name__ == "__main__":
    main()
