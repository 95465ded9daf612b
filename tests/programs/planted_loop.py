"""The training of which each planted habit changes a part: data, blocks of the net, or steps."""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

COUNT, SIDE, WIDTH, EPOCHS = 512, 4, 48, 4


class Source:
    """Images and labels; ``planted`` tells a habit from its sound twin, here as in all parts."""

    sampler = init = None

    def __init__(self, planted):
        self.planted = planted
        made = torch.Generator().manual_seed(1)
        self.images = torch.randn(COUNT, 3, SIDE, SIDE, generator=made)
        self.labels = (self.images.mean((1, 2, 3)) > 0).long()
        self.prepare()

    def prepare(self):
        """What is made before the loader."""

    def image(self, index):
        return self.images[index] * (1 + self.level(index)) + self.added(index)

    def level(self, index):
        return 0.0

    def added(self, index):
        return 0.0

    def collate(self, items):
        images, labels = zip(*items)
        return torch.stack(images), torch.stack(labels)

    def batch_done(self, number):
        """What the loop does to the data after a batch."""

    def epoch_done(self, number):
        """What the loop does to the data after an epoch."""


class Items(Dataset):
    """One class for all sources, for it is by its class that autotune knows the loader again."""

    def __init__(self, source):
        self.source = source

    def __len__(self):
        return COUNT

    def __getitem__(self, index):
        return torch.as_tensor(self.source.image(index)).float(), self.source.labels[index]


class Block(nn.Module):
    def __init__(self, planted):
        super().__init__()
        self.planted = planted
        self.linear = nn.Linear(WIDTH, WIDTH)
        self.prepare()

    def prepare(self):
        """What the block holds besides."""

    def forward(self, x):
        # Before what autograd keeps: torch computes no more of a block again than that
        return x + torch.tanh(self.linear(self.change(x)))

    def change(self, y):
        return y


class Net(nn.Module):
    def __init__(self, blocks, planted):
        super().__init__()
        self.planted = planted
        self.first = nn.Conv2d(3, 3, 3, padding=1)
        self.second = nn.Conv2d(3, 3, 3, padding=1)
        self.blocks = nn.ModuleList(blocks)
        self.last = nn.Linear(WIDTH, 2)
        self.prepare()

    def prepare(self):
        """What the net holds besides."""

    def features(self, x):
        x = self.flat(self.second(self.between(torch.relu(self.first(x)))))
        for block in self.blocks:
            x = block(x)
        return x

    def between(self, x):
        return x

    def flat(self, x):
        return x.flatten(1)

    def forward(self, x):
        return self.last(self.features(x))


class Training:
    source, block, net = Source, Block, Net

    def __init__(self, planted):
        self.planted, self.batches = planted, 0
        self.data = self.source(planted)
        self.loader = DataLoader(
            Items(self.data),
            batch_size=16,
            shuffle=self.data.sampler is None,
            sampler=self.data.sampler,
            collate_fn=self.data.collate,
            worker_init_fn=self.data.init,
        )
        self.model = self.net([self.block(planted) for _ in range(3)], planted)
        self.optimizer = self.optimize()
        self.prepare()

    def optimize(self):
        return torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9)

    def prepare(self):
        """What is made before the first step."""

    def read(self):
        return self.loader

    def run(self):
        for epoch in range(EPOCHS):
            for x, y in self.read():
                self.step(x, y)
                self.batches += 1
                self.after_step()
                self.data.batch_done(self.batches)
            self.after_epoch()
            self.data.epoch_done(epoch + 1)
            torch.save(self.saved(), "last.pt")

    def step(self, x, y):
        loss = self.loss(x, y)
        self.clear()
        loss.backward()
        self.before_step()
        self.optimizer.step()

    def loss(self, x, y):
        return functional.cross_entropy(self.model(x), y)

    def clear(self):
        self.optimizer.zero_grad()

    def before_step(self):
        """What is done with the gradients."""

    def after_step(self):
        """What is done after each batch."""

    def after_epoch(self):
        """What is done after each epoch."""

    def saved(self):
        return {"model": self.model.state_dict()}

    def parameters(self):
        return [*self.model.parameters()]
