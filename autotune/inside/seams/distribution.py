"""The seam of distribution: models that the program trains become one model on several devices.

The program keeps its own objects. At the first call of a model that some optimizer trains, all
ranks take over the first rank's weights. In the first step gradients are averaged one by one, as
they are computed; from then on, when it is known which parameters get any, the strategy does it.
What no called model owns goes on being averaged one by one.

Checked once, after the third step, and said by an error: the ranks' parameters are equal, and they
do not all train on the same batches.

Covered: several models and optimizers, frozen parts, parameters outside of any called module,
unused parameters, clipping by the global norm, metrics of ReduceLROnPlateau, BatchNorm's statistics
before an evaluation. Not covered: decisions that the program takes by its own loss, which is that
of a rank's share; random numbers drawn by generators of its own.
"""

from __future__ import annotations

import math
import random
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, ref

import torch
from torch import distributed, nn
from torch.distributed.tensor import DTensor
from torch.nn import utils
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from autotune.config import KnobValue
from autotune.inside.feed import first_tensor
from autotune.inside.group import Group
from autotune.inside.seams.accumulation import AccumulationSeam
from autotune.inside.seams.base import Patches
from autotune.inside.seams.checkpoint import blocks_of
from autotune.strategies import STRATEGIES, Site, Strategy

DDP_OPTIONS = ("bucket_cap_mb", "gradient_as_bucket_view", "static_graph")
LEAST_ALIKE = 2  # batches that must be the same on all ranks to be called so
TOLERANCE = 1e-6


class DistributionSeam:
    """Applies a strategy to the models that are called and trained.

    Args:
        group: The processes that train together.
        optimizers: Gives the living optimizers.
        accumulation: Tells which batches make no step.
    """

    def __init__(
        self,
        group: Group,
        optimizers: Callable[[], Sequence[Optimizer]],
        accumulation: AccumulationSeam,
    ) -> None:
        self._group = group
        self._optimizers = optimizers
        self._accumulation = accumulation
        self._strategy: Strategy | None = None
        self._options: dict[str, KnobValue] = {}
        self._called: WeakKeyDictionary[nn.Module, _Model] = WeakKeyDictionary()
        self._hooks: dict[int, Any] = {}
        self._untrained: WeakSet[nn.Module] = WeakSet()
        self._adopted: WeakSet[Optimizer] = WeakSet()
        self._replaced: dict[int, tuple[ref[nn.Parameter], nn.Parameter]] = {}
        self._seen: set[int] = set()
        self._unused: set[int] = set()
        self._steps = 0
        self._inputs: list[float] = []
        self._has_seeded = False
        self._patches = Patches()

    def use(self, strategy: str) -> None:
        """Distribute by a strategy; one that leaves models alone needs nothing of this seam."""
        self._strategy = None if strategy in {"single", "own"} else STRATEGIES[strategy]

    def request(self, **options: KnobValue) -> None:
        """Ask for options, by the names of their knobs."""
        self._options.update(options)

    @property
    def is_needed(self) -> bool:
        """A strategy acts on the program's models."""
        return self._strategy is not None

    @property
    def has_ranks(self) -> bool:
        """The strategy runs the program in several processes."""
        return self._strategy is not None and self._strategy.launches_ranks

    def install(self) -> None:
        """Begin to act."""
        if self._strategy is None:
            if self._options:
                self._overrule_ddp()
            return
        if self.has_ranks:
            self._clip_globally()
            self._judge_alike()

    def remove(self) -> None:
        """Put PyTorch back as it was; models stay distributed."""
        self._patches.undo()
        for hook in self._hooks.values():
            hook.remove()

    def optimizer_built(self) -> None:
        """The program has its weights: from here on each rank draws random numbers of its own."""
        if self.has_ranks and not self._has_seeded:
            self._has_seeded = True
            if not self._group.is_first:
                self._draw_otherwise()

    def route(self, module: nn.Module, args: tuple[Any, ...]) -> nn.Module:
        """Return what to call in the place of an outermost module."""
        if self._strategy is None or module in self._untrained:
            return module
        model = self._called.get(module)
        if model is None:
            model = self._meet(module, self._strategy)
        if model is None:
            return module
        if not torch.is_grad_enabled():
            model.settle_buffers(self._group)
            return module
        if self._steps < LEAST_ALIKE + 1 and self.has_ranks:
            self._inputs.append(_fingerprint(args))
        if model.called is None and (model.trained <= self._seen or not self.has_ranks):
            self._distribute(module, model, self._strategy)
        if model.called is None:
            return module
        model.has_trained = True
        if self.has_ranks:
            self._strategy.sync_gradients(model.called, enabled=not self._accumulation.holds)
        return model.called

    def stepped(self, optimizer: Optimizer) -> None:
        """An optimizer has made one of its first steps."""
        if not self.has_ranks:
            return
        own = _parameters([optimizer])
        if any(id(p) not in self._seen for p in own):
            self._unused |= {id(p) for p in own if p.grad is None}
            self._seen |= {id(p) for p in own}
        if optimizer not in self._adopted and self._strategy is not None:
            self._adopted.add(optimizer)
            if not self._strategy.replaces_parameters:
                self._strategy.adopt(optimizer, self._site())
        self._steps += 1

    def check(self) -> None:
        """Insist that the ranks train one model, on data of their own.

        Raises:
            RuntimeError: when they do not.
        """
        if not self.has_ranks or self._group.world_size == 1:
            return
        weights = sum(_sum(p) for p in _parameters(self._optimizers()))
        inputs = self._inputs[-LEAST_ALIKE:]
        every: list[Any] = [None] * self._group.world_size
        distributed.all_gather_object(every, (weights, inputs))
        if any(abs(w - weights) > TOLERANCE * max(1.0, abs(weights)) for w, _ in every):
            raise RuntimeError(
                "the ranks' models drifted apart: the program changes its weights in a way that "
                "is not seen here. Leave strategy and world_size out of the search."
            )
        vary = len(set(inputs)) > 1
        if vary and all(theirs == inputs for _, theirs in every):
            raise RuntimeError(
                "all ranks train on the same batches: the program draws them by random numbers or "
                "an order of its own. Leave strategy and world_size out of the search."
            )

    def _site(self) -> Site:
        return Site(
            rank=self._group.rank,
            world_size=self._group.world_size,
            options=self._options,
            optimizers=self._optimizers(),
            blocks=lambda module: blocks_of([module]),
            unused=frozenset(self._unused),
        )

    def _meet(self, module: nn.Module, strategy: Strategy) -> _Model | None:
        """Know a module that is called for the first time; None for one that nothing trains."""
        trained = {id(p) for p in _parameters(self._optimizers())}
        own = {id(p) for p in module.parameters()} & trained
        if not own:
            if self._steps:
                self._untrained.add(module)
            return None
        model = self._called[module] = _Model(module, own)
        if not self.has_ranks:
            return model
        self._group.initialize()
        for tensor in (*module.parameters(), *module.buffers()):
            _send_out(tensor)
        if strategy.replaces_parameters:
            before = dict(module.named_parameters())
            model.called = strategy.distribute(module, self._site())
            after = dict(module.named_parameters())
            for name, old in before.items():
                self._replaced[id(old)] = ref(old), after[name]
            for optimizer in self._optimizers():
                if optimizer not in self._adopted:
                    self._adopted.add(optimizer)
                    strategy.adopt(optimizer, self._site())
        for parameter in _parameters(self._optimizers()):
            self._average_alone(parameter)
        return model

    def _distribute(self, module: nn.Module, model: _Model, strategy: Strategy) -> None:
        for parameter in module.parameters():
            if (hook := self._hooks.pop(id(parameter), None)) is not None:
                hook.remove()
        model.called = strategy.distribute(module, self._site())

    def _average_alone(self, parameter: nn.Parameter) -> None:
        """Average a parameter's gradient whenever one is computed."""
        if id(parameter) in self._hooks or isinstance(parameter, DTensor):
            return
        if not any(parameter is p for model in self._called for p in model.parameters()):
            _send_out(parameter)  # of no module that was called so far
        size = self._group.world_size
        accumulation = self._accumulation

        def average(own: torch.Tensor) -> None:
            if own.grad is not None and not accumulation.holds:
                distributed.all_reduce(own.grad)
                own.grad /= size

        self._hooks[id(parameter)] = parameter.register_post_accumulate_grad_hook(average)

    def _draw_otherwise(self) -> None:
        rank = self._group.rank
        original = torch.manual_seed
        original(torch.initial_seed() + rank)
        random.seed(f"{random.random()} on rank {rank}")
        if (numpy := sys.modules.get("numpy")) is not None:
            numpy.random.seed((numpy.random.randint(1 << 31) + rank) % (1 << 32))

        def manual_seed(seed: int) -> torch.Generator:
            return original(int(seed) + rank)

        self._patches.replace(torch, "manual_seed", manual_seed)

    def _clip_globally(self) -> None:
        """Clip the parameters that are trained, by their norm over all ranks as a plain number."""
        by_norm, by_value = utils.clip_grad_norm_, utils.clip_grad_value_
        seam = self

        def clip_grad_norm_(parameters: Any, max_norm: float, *args: Any, **kwargs: Any) -> Any:
            present = seam._present(parameters)
            shards = [p for p in present if isinstance(p, DTensor)]
            others = [p for p in present if not isinstance(p, DTensor)]
            if shards and others:  # torch takes no norm of both together
                return _clip_both(by_norm, shards, others, max_norm, *args, **kwargs)
            norm = by_norm(present, max_norm, *args, **kwargs)
            return norm.full_tensor() if isinstance(norm, DTensor) else norm

        def clip_grad_value_(parameters: Any, *args: Any, **kwargs: Any) -> None:
            by_value(seam._present(parameters), *args, **kwargs)

        self._patches.replace(utils, "clip_grad_norm_", clip_grad_norm_)
        self._patches.replace(utils, "clip_grad_value_", clip_grad_value_)

    def _present(self, parameters: Any) -> list[Any]:
        """Parameters as they are now: a program may hold those that were replaced."""
        given = [parameters] if isinstance(parameters, torch.Tensor) else [*parameters]
        return [self._replacement(parameter) for parameter in given]

    def _replacement(self, parameter: Any) -> Any:
        old, new = self._replaced.get(id(parameter), (None, None))
        return new if old is not None and old() is parameter else parameter

    def _judge_alike(self) -> None:
        """A schedule that follows a metric follows the mean of all ranks'."""
        original = ReduceLROnPlateau.step
        group = self._group

        def step(scheduler: ReduceLROnPlateau, metrics: Any, *args: Any, **kwargs: Any) -> None:
            if distributed.is_initialized():
                every: list[Any] = [None] * group.world_size
                distributed.all_gather_object(every, float(metrics))
                metrics = sum(every) / len(every)
            original(scheduler, metrics, *args, **kwargs)

        self._patches.replace(ReduceLROnPlateau, "step", step)

    def _overrule_ddp(self) -> None:
        """Give the options to the DDP that the program, or its trainer, makes itself."""
        original = DistributedDataParallel.__init__
        options = {
            name: self._options[f"ddp_{name}"]
            for name in DDP_OPTIONS
            if f"ddp_{name}" in self._options
        }

        def init(wrapper: Any, *args: Any, **kwargs: Any) -> None:
            original(wrapper, *args, **{**kwargs, **options})

        self._patches.replace(DistributedDataParallel, "__init__", init)


def _clip_both(
    clip: Callable[..., Any],
    shards: Sequence[Any],
    others: Sequence[Any],
    max_norm: float,
    norm_type: float = 2.0,
    **kwargs: Any,
) -> torch.Tensor:
    """Clip sharded and whole parameters by their common norm, and return it."""
    parts = [clip(part, math.inf, norm_type, **kwargs) for part in (shards, others)]
    norms = [norm.full_tensor() if isinstance(norm, DTensor) else norm for norm in parts]
    whole: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms), norm_type)
    utils.clip_grads_with_norm_(shards, max_norm, whole)
    utils.clip_grads_with_norm_(others, max_norm, whole)
    return whole


class _Model:
    """A model that is called and trained.

    Attributes:
        trained: Ids of the parameters that optimizers have.
        called: What is called in its place, None before it is distributed.
        has_trained: It was trained since its buffers were last made equal.
    """

    def __init__(self, module: nn.Module, trained: set[int]) -> None:
        self.trained = trained
        self._module = ref(module)
        self.called: nn.Module | None = None
        self.has_trained = False

    def settle_buffers(self, group: Group) -> None:
        """Make all ranks evaluate the same model: BatchNorm's statistics are each rank's own."""
        module = self._module()
        if self.has_trained and group.world_size > 1 and module is not None:
            for buffer in module.buffers():
                _send_out(buffer)
        self.has_trained = False


def _parameters(optimizers: Iterable[Optimizer]) -> list[nn.Parameter]:
    """Return the parameters of all optimizers, each once, in the order of their groups."""
    every = (
        p for optimizer in optimizers for group in optimizer.param_groups for p in group["params"]
    )
    return list({id(p): p for p in every}.values())


def _send_out(tensor: torch.Tensor) -> None:
    """Give all ranks the first one's values."""
    tensor = tensor.detach()
    distributed.broadcast(tensor.view(torch.uint8) if tensor.dtype == torch.bool else tensor, 0)


def _sum(parameter: torch.Tensor) -> float:
    whole = parameter.detach()
    whole = whole.full_tensor() if isinstance(whole, DTensor) else whole
    return float(whole.double().sum())


def _fingerprint(args: tuple[Any, ...]) -> float:
    """A number that tells batches apart; equal ones have equal numbers."""
    tensor = first_tensor(args)
    if tensor is None:
        return 0.0
    flat = tensor.detach().double().flatten()
    return float((flat * torch.arange(1, len(flat) + 1, device=flat.device)).sum())
