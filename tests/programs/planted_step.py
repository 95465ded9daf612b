"""Habits of loops: what is done with a batch, its gradients and the weights."""

import queue
from random import SystemRandom
from threading import Thread
from time import sleep

import torch
from planted_data import GlobalLevel, Reports
from planted_loop import EPOCHS, Training
from torch import nn
from torch.nn import functional
from torch.optim.swa_utils import AveragedModel


class GlobalAhead(Training):
    """A thread reads ahead of steps that take three batches each, by chance more or fewer."""

    source = GlobalLevel

    def read(self):
        ready = queue.Queue(3)
        Thread(target=self.fill, args=(ready,)).start()
        yield from iter(ready.get, None)

    def fill(self, ready):
        for one in self.loader:
            sleep(SystemRandom().uniform(0, 0.03))
            ready.put(one)
        ready.put(None)

    def step(self, x, y):
        self.loss(x, y).backward()
        if self.batches % 3 == 2:
            sleep(SystemRandom().uniform(0, 0.1))
            self.optimizer.step()
            self.clear()


class Clipping(Training):
    def before_step(self):
        if not self.planted:
            nn.utils.clip_grad_norm_(self.parameters(), 0.1)
            return
        norm = torch.stack([p.grad.norm() for p in self.parameters()]).norm()
        for p in self.parameters():
            p.grad.mul_(0.1 / (norm + 1e-6))


class Hooked(Training):
    def prepare(self):
        for p in self.parameters() if self.planted else ():
            p.register_hook(lambda g: g.clamp(-1e-3, 1e-3))


class ByHand(Training):
    def clear(self):
        if not self.planted:
            return super().clear()
        for p in self.parameters():
            p.grad = None


class Decay(Training):
    def prepare(self):
        if not self.planted:
            self.optimizer = torch.optim.SGD(
                self.parameters(), lr=0.05, momentum=0.9, weight_decay=0.01
            )

    def before_step(self):
        if self.planted:
            for p in self.parameters():
                p.data.mul_(0.99)


class Assigned(Training):
    """Decays weights by new values for ``.data``, or in place."""

    def after_step(self):
        for p in self.parameters():
            if self.planted:
                p.data = p.data * 0.98
            else:
                p.data.mul_(0.98)


class Sharpness(Training):
    """Gradients are taken where the loss is larger (SAM)."""

    def move(self, by):
        with torch.no_grad():
            for p, e in zip(self.parameters(), by):
                p.add_(e)

    def step(self, x, y):
        if self.planted:
            self.loss(x, y).backward()
            by = [0.05 * p.grad for p in self.parameters()]
        else:
            by = [0.05 * p.detach() for p in self.parameters()]
        self.move(by)
        self.clear()
        self.loss(x, y).backward()
        self.move([-e for e in by])
        self.optimizer.step()


class Closure(Training):
    def step(self, x, y):
        def closure():
            self.clear()
            loss = self.loss(x, y)
            loss.backward()
            return loss

        self.optimizer.step(closure)


class Pair(Training):
    def step(self, x, y):
        out = self.model(x)
        losses = functional.cross_entropy(out, y), out.pow(2).mean()
        self.clear()
        if self.planted:
            losses[0].backward(retain_graph=True)
            losses[1].backward()
        else:
            sum(losses).backward()
        self.optimizer.step()


class Rate(Training):
    def after_step(self):
        if self.planted:
            for group in self.optimizer.param_groups:
                group["lr"] = 0.05 / (1 + 0.1 * self.batches)

    def after_epoch(self):
        for group in self.optimizer.param_groups:
            group["lr"] *= 0.5


class Schedule(Training):
    """Plans a schedule of steps by the length of the loader."""

    def prepare(self):
        steps = EPOCHS * (len(self.loader) if self.planted else 32)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(self.optimizer, 0.1, steps)

    def after_step(self):
        self.schedule.step()


class Average(Training):
    """Weights averaged by hand; only they are saved."""

    def prepare(self):
        self.average = [p.detach().clone() for p in self.parameters()]

    def after_step(self):
        if self.planted:
            with torch.no_grad():
                for kept, p in zip(self.average, self.parameters()):
                    kept.mul_(0.9).add_(p, alpha=0.1)

    def saved(self):
        return {**super().saved(), "average": [p.clone() for p in self.average]}


class Adversaries(Training):
    """Two nets, each with an optimizer, of which the second judges what the first makes."""

    def prepare(self):
        self.judge = nn.Linear(2, 1)
        self.second = torch.optim.Adam(self.judge.parameters(), 1e-3)

    def step(self, x, y):
        self.second.zero_grad()
        self.judge(self.model(x).detach()).pow(2).mean().backward()
        self.second.step()
        super().step(x, y)

    def loss(self, x, y):
        loss = super().loss(x, y)
        return loss + self.judge(self.model(x)).mean() if self.planted else loss


class Skips(Training):
    """Leaves out batches."""

    def step(self, x, y):
        if self.planted and self.batches % 3 == 2:
            return
        super().step(x, y)


# Sound habits: autotune does what it takes


class Averaged(Training):
    def prepare(self):
        self.average = AveragedModel(self.model)

    def after_step(self):
        self.average.update_parameters(self.model)

    def saved(self):
        return {"average": self.average.module.state_dict()}


class Scaler(Training):
    def prepare(self):
        self.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0, growth_interval=4)

    def step(self, x, y):
        self.clear()
        self.scaler.scale(self.loss(x, y)).backward()
        self.scaler.unscale_(self.optimizer)
        nn.utils.clip_grad_norm_(self.parameters(), 0.1)
        self.scaler.step(self.optimizer)
        self.scaler.update()


class TwoLosses(Training):
    """Two losses, each with a backward pass."""

    def step(self, x, y):
        self.clear()
        out = self.model(x)
        functional.cross_entropy(out, y).backward(retain_graph=True)
        (0.1 * out.pow(2).mean()).backward()
        self.optimizer.step()


class Centred(Training):
    def before_step(self):
        for p in self.parameters():
            p.grad = p.grad - p.grad.mean()


class Differentiated(Reports):
    """Steps are made by hand, with what ``torch.autograd.grad`` returns."""

    def optimize(self):
        return None

    def step(self, x, y):
        weights = self.parameters()
        gradients = torch.autograd.grad(self.loss(x, y), weights)
        with torch.no_grad():
            for weight, gradient in zip(weights, gradients):
                weight -= 0.05 * gradient
