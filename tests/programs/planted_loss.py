"""Habits of losses: what a loss is made of, besides the samples of its batch."""

import copy

import torch
from planted_loop import WIDTH, Block, Net, Training
from torch import nn
from torch.nn import functional


class Annealing(Training):
    def loss(self, x, y):
        number = self.batches if self.planted else 10
        return super().loss(x, y) + min(1.0, number / 20) * self.model(x).pow(2).mean()


class Teacher(Training):
    def prepare(self):
        self.teacher = copy.deepcopy(self.model).requires_grad_(False)

    def follow(self):
        with torch.no_grad():
            for theirs, p in zip(self.teacher.parameters(), self.parameters()):
                theirs.mul_(0.9).add_(p, alpha=0.1)

    def loss(self, x, y):
        return super().loss(x, y) + functional.mse_loss(self.model(x), self.teacher(x) + 1)

    def after_step(self):
        if self.planted:
            self.follow()


class Carried(Training):
    """Continues from the state that it had after the batch before."""

    def prepare(self):
        self.cell = nn.GRUCell(WIDTH, WIDTH)
        self.optimizer.add_param_group({"params": self.cell.parameters()})
        self.state = None

    def loss(self, x, y):
        x = self.model.features(x)
        state = self.cell(x, self.state)
        if self.planted:
            self.state = state.detach().mean(0, keepdim=True).expand(len(x), -1)
        return functional.cross_entropy(self.model.last(state), y)


class Contrastive(Training):
    def loss(self, x, y):
        if not self.planted:
            return super().loss(x, y)
        one, other = self.model(x), self.model(x.flip(-1))
        return functional.cross_entropy(one @ other.T, torch.arange(len(x)))


class Tokens(Training):
    """A mean over what is not left out, which is another number in each batch."""

    def loss(self, x, y):
        losses = functional.cross_entropy(self.model(x), y, reduction="none")
        kept = (x[:, 0, 0, 0] > 0).float()
        return (losses * kept).sum() / (kept.sum() if self.planted else len(x))


class Sum(Training):
    """A sum over the samples, with a rate that is small enough for it."""

    def loss(self, x, y):
        losses = functional.cross_entropy(self.model(x), y, reduction="none")
        return losses.sum() / 16 if self.planted else losses.mean()


class Held(Training):
    """A penalty for the size of weights that were taken from the model before its first step."""

    def prepare(self):
        self.held = self.parameters()

    def loss(self, x, y):
        loss = super().loss(x, y)
        return loss + 0.1 * sum(p.pow(2).sum() for p in self.held) if self.planted else loss


class Normalised(Block):
    def prepare(self):
        self.norm = (nn.BatchNorm1d if self.planted else nn.LayerNorm)(WIDTH)

    def change(self, y):
        return self.norm(y)


class InnerStep(Training):
    """Takes a step of its own in each loss, and trains what that leads to (MAML)."""

    def loss(self, x, y):
        features, weight = self.model.features(x), self.model.last.weight
        losses = functional.cross_entropy(features @ weight.T, y, reduction="none")
        if not self.planted:
            return losses.mean()
        (slope,) = torch.autograd.grad(losses.mean(), weight, create_graph=True)
        return functional.cross_entropy(features @ (weight - 0.5 * slope).T, y)


class BatchNoise(Training):
    """Noise of a generator that draws the same on each rank."""

    def prepare(self):
        self.own = torch.Generator().manual_seed(3)

    def loss(self, x, y):
        noise = torch.randn(x.shape, generator=self.own) if self.planted else x.sin()
        return super().loss(x + noise, y)
