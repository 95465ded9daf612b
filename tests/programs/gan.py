"""Two optimizers in turn; the discriminator is called twice in each step."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

loader = DataLoader(TensorDataset(torch.randn(2048, 8)), batch_size=16, shuffle=True)
generator = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Linear(16, 8))
discriminator = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
optimizer_d = torch.optim.Adam(discriminator.parameters(), lr=1e-4)
optimizer_g = torch.optim.Adam(generator.parameters(), lr=1e-4)
loss_of = nn.BCEWithLogitsLoss()
for _ in range(10_000):
    for (real,) in loader:
        ones, zeros = torch.ones(len(real), 1), torch.zeros(len(real), 1)
        fake = generator(torch.randn(len(real), 4))
        optimizer_d.zero_grad()
        loss_d = loss_of(discriminator(real), ones) + loss_of(discriminator(fake.detach()), zeros)
        loss_d.backward()
        optimizer_d.step()
        optimizer_g.zero_grad()
        loss_g = loss_of(discriminator(fake), ones)
        loss_g.backward()
        optimizer_g.step()
