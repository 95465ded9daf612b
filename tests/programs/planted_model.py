"""Habits of models: what a net and its blocks do when they are called."""

import torch
from planted_loop import WIDTH, Block, Net, Training
from torch import nn
from torch.nn import functional


class BlockDraws(Block):
    def prepare(self):
        self.own = torch.Generator().manual_seed(5) if self.planted else None

    def change(self, y):
        return y * (1 + torch.rand((), generator=self.own))


class Codes(Block):
    """Codes that follow what the block sees, as those of a quantiser do."""

    def prepare(self):
        codes = torch.zeros(WIDTH)
        if self.planted:
            self.codes = nn.Parameter(codes, requires_grad=False)
        else:
            self.register_buffer("codes", codes)

    def change(self, y):
        self.codes.data.mul_(0.9).add_(y.detach().mean(0), alpha=0.1)
        return y - self.codes.detach().clone()


class BlockCounts(Block):
    calls = 0

    def change(self, y):
        self.calls += 1
        return y * (1 + 0.1 * (self.calls if self.planted else 2))


class BlockDecays(Block):
    def change(self, y):
        if self.planted:
            self.linear.weight.data.mul_(0.9)
        return y


class Argument(Block):
    def forward(self, x):
        return super().forward(x.mul_(0.5) if self.planted else x)


class Collects(Training):
    """Collects what blocks return, by hooks, for a part of the loss."""

    def prepare(self):
        self.features = []
        for block in self.model.blocks:
            block.linear.register_forward_hook(lambda _m, _a, out: self.features.append(out))

    def loss(self, x, y):
        if not self.planted:
            self.features.clear()
        loss = super().loss(x, y)
        loss = loss + 0.1 * torch.stack([f.pow(2).mean() for f in self.features]).mean()
        if self.planted:
            self.features.clear()
        return loss


class Temperature(Training):
    class block(Block):
        temperature = 1.0

        def change(self, y):
            return torch.tanh(y * self.temperature)

    def warm(self):
        for block in self.model.blocks:
            block.temperature *= 1.1

    def clear(self):
        super().clear()
        if self.planted:
            self.warm()

    def after_step(self):
        if not self.planted:
            self.warm()


class SharedWeight(Training):
    def prepare(self):
        weight = self.model.first.weight.data
        self.model.second.weight.data = weight if self.planted else weight.clone()


class Views(Training):
    def prepare(self):
        self.views = [p.data.view(-1) for p in self.parameters()]

    def before_step(self):
        for view, p in zip(self.views, self.parameters()):
            (view if self.planted else p.data).mul_(0.95)


class View(Training):
    class net(Net):
        def flat(self, x):
            return x.view(len(x), -1) if self.planted else x.flatten(1)


class Noise(Training):
    class net(Net):
        def between(self, x):
            return x + 0.1 * (torch.randn_like(x) if self.planted else torch.randn(x.shape))


# Sound habits: autotune does what it takes


class BatchNorm(Block):
    def prepare(self):
        self.norm = nn.BatchNorm1d(WIDTH)

    def change(self, y):
        return self.norm(y)


class SpectralNorm(Block):
    def prepare(self):
        self.linear = nn.utils.parametrizations.spectral_norm(self.linear)


class Kept(Training):
    class block(Block):
        def change(self, y):
            self.kept = y.pow(2).mean()
            return y

    def loss(self, x, y):
        loss = super().loss(x, y)
        return loss + 0.1 * sum(block.kept for block in self.model.blocks)


class Penalty(Training):
    def loss(self, x, y):
        x = x.requires_grad_()
        loss = super().loss(x, y)
        (slope,) = torch.autograd.grad(loss, x, create_graph=True)
        return loss + slope.pow(2).sum()


class Tied(Training):
    def prepare(self):
        self.model.second.weight = self.model.first.weight
        self.model.blocks[2].linear.weight = self.model.blocks[1].linear.weight
        self.optimizer = self.optimize()


class Sparse(Training):
    class net(Net):
        def prepare(self):
            self.words = nn.Embedding(8, WIDTH, sparse=self.planted)

        def features(self, x):
            return super().features(x) + self.words((x.mean((1, 2, 3)) > 0).long())
