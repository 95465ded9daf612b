"""Train an LSTM to tell which of some patterns a sequence of words follows; rows are made here."""

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

WORDS, LENGTH, KINDS = 2000, 48, 8


class Sentences(Dataset):
    """Sequences of word numbers, each padded and cut one by one."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[torch.Tensor, int]:
        draws = torch.Generator().manual_seed(index)
        kind = index % KINDS
        length = int(torch.randint(LENGTH // 2, LENGTH, (1,), generator=draws))
        words = [int(w) for w in torch.randint(1, WORDS, (length,), generator=draws)]
        words = [w - w % KINDS + kind if place % 5 == 0 else w for place, w in enumerate(words)]
        return torch.tensor(words + [0] * (LENGTH - length)), kind


class Reader(nn.Module):
    """An embedding, an LSTM and a linear layer on its last state."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(WORDS + KINDS, 64)
        self.lstm = nn.LSTM(64, 96, batch_first=True)
        self.head = nn.Linear(96, KINDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        states, _ = self.lstm(self.embed(words))
        return self.head(states[:, -1])


torch.manual_seed(0)
loader = DataLoader(Sentences(8192), batch_size=16, shuffle=True)
model = Reader()
optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
for epoch in range(50):
    model.train()
    for words, kinds in loader:
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(words), kinds)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    print(f"epoch {epoch}: loss {loss.item():.3f}")
