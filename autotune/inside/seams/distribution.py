"""The seam of distribution: models that the program trains become one model on several devices.

The program keeps its own objects. When it first calls a model that some optimizer trains, all ranks
take the first rank's weights. In the first step, gradients are averaged parameter by parameter
after the backward pass. Then it is known which parameters get gradients, and the strategy averages
from there on. Parameters that no called model owns are still averaged one by one.

Covered: several models and optimizers; parts that are frozen, for good or from step to step;
parameters outside of any called module; unused parameters; models, optimizers and parameter groups
that are added later; clipping by the global norm; metrics of ``ReduceLROnPlateau``; BatchNorm's
statistics before an evaluation.

Not covered, and refused by the comparison before a recommendation: several backward passes after
one call of a model; losses that are not a mean over equal numbers of samples; parameters that get
gradients only in some steps; decisions that the program bases on its own loss, which is that of one
rank's share; random numbers from the program's own generators; parameters that it took before fsdp
replaced them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary, WeakSet, WeakValueDictionary

import torch
from torch import distributed, nn
from torch.optim import Optimizer

from autotune.inside.hubs.backward import BackwardHub, BackwardListener, BackwardPass
from autotune.inside.hubs.patches import Seam
from autotune.inside.ranks.dtensor import is_sharded
from autotune.inside.ranks.group import Group
from autotune.inside.seams.accumulation import AccumulationSeam
from autotune.inside.seams.checkpoint import blocks_of
from autotune.inside.seams.rank_checks import DriftCheck, parameters_of
from autotune.inside.seams.rank_patches import RankPatches
from autotune.knobs.strategies import STRATEGIES, RankStrategy, Site, Strategy
from autotune.program.config import KnobValue

DDP_OPTIONS = ("bucket_cap_mb", "gradient_as_bucket_view", "static_graph")


class DistributionSeam(Seam, BackwardListener):
    """Applies a strategy to the models that the program calls and trains.

    ``Steering`` chooses the strategy before the program starts, on the main thread. The forward
    seam calls ``route()`` at each outermost module call, and ``SeamSet`` calls ``stepped()`` after
    each optimizer step, both on the thread that trains. All ranks must make these calls in the same
    order, because many of them communicate.

    Args:
        backward: The hub that it joins if several ranks train.

    Attributes:
        patches: What torch does otherwise where ranks or one device train, or DDP gets options.
    """

    def __init__(
        self,
        group: Group,
        optimizers: Callable[[], Sequence[Optimizer]],
        accumulation: AccumulationSeam,
        backward: BackwardHub,
    ) -> None:
        self._group = group
        self._backward = backward
        self._optimizers = optimizers
        self._accumulation = accumulation
        self.patches = RankPatches(group)
        self._strategy: Strategy | None = None
        self._is_single = False
        self._options: dict[str, KnobValue] = {}
        self._models = _Models()
        self._check = DriftCheck(group, optimizers)

    def use(self, strategy: str) -> None:
        """Choose the strategy by its name.

        ``single`` and ``own`` leave the program's models alone, but ``single`` keeps replicas away.
        """
        self._is_single = strategy == "single"
        self._strategy = None if strategy in {"single", "own"} else STRATEGIES[strategy]

    def request(self, **options: KnobValue) -> None:
        """Set options of the strategy, by the names of their knobs.

        Without a strategy, those of DDP apply to the DDP that the program itself builds.
        """
        self._options.update(options)

    @property
    def is_needed(self) -> bool:
        """Whether a strategy acts on the program's models."""
        return self._strategy is not None

    @property
    def has_ranks(self) -> bool:
        """Whether the strategy runs the program in several processes."""
        return isinstance(self._strategy, RankStrategy)

    def install(self) -> None:
        """Begin to act, as far as the strategy and the options require it."""
        if self._is_single or self.has_ranks:
            self.patches.use_first_device()
        if self._strategy is None and self._options:
            given = {f"ddp_{name}": name for name in DDP_OPTIONS}
            self.patches.pass_to_ddp(
                {given[knob]: value for knob, value in self._options.items() if knob in given}
            )
        elif self.has_ranks:
            self._backward.join(self)
            self.patches.install()

    def remove(self) -> None:
        """Put PyTorch back as it was. Models that were distributed stay so."""
        self.patches.remove()
        self._models.left.clear()

    def agree(self) -> None:
        """Seed random numbers alike on all ranks, so that they set up the program alike."""
        if self.has_ranks and self._group.world_size > 1:
            self.patches.agree()

    def draw_otherwise(self) -> None:
        """Give each rank its own random numbers from here on, because training begins.

        Equal numbers would make all ranks drop and augment alike. Later calls have no effect.
        """
        if self.has_ranks:
            self.patches.differ()

    def groups_changed(self) -> None:
        """Take note of an optimizer that was built or got parameters.

        Parameters that a strategy has replaced are handed over to the optimizer.
        """
        self._models.untrained.clear()
        self._models.has_new_optimizers = True
        if isinstance(self._strategy, RankStrategy) and self._models.called:
            for optimizer in self._optimizers():
                if replaced := self.patches.replacements(parameters_of([optimizer])):
                    self._strategy.hand_over(optimizer, replaced)
            self._average_what_is_left()

    def loader_begins(self) -> None:
        """Note that the program iterates a loader whose data the ranks share out among them."""
        self._check.has_loader = True
        self.draw_otherwise()

    def route(self, module: nn.Module, inputs: tuple[Any, ...]) -> nn.Module:
        """Return the module to call instead of an outermost module, which may be the module itself.

        The first call of a trained module distributes it, or prepares that. During evaluation the
        ranks call the program's own module, with the first rank's buffers, such as BatchNorm's
        statistics: each rank gathers its own in training.
        """
        strategy = self._strategy
        if strategy is None or module in self._models.untrained:
            return module
        model = self._models.called.get(module)
        if model is None:
            # Tensors made in inference mode cannot be trained, and the first call may be in it.
            with torch.inference_mode(mode=False):
                model = self._first_called(module, strategy)
        if model is None:
            return module
        if not isinstance(strategy, RankStrategy):
            return model.called or module
        if self._models.has_new_optimizers:
            self._adopt_optimizers(strategy)
        if torch.is_grad_enabled():
            self._check.note_batch(inputs)
            return self._trains(module, model, strategy)
        if model.has_trained and self._group.world_size > 1:
            for buffer in module.buffers():
                send_out(buffer)
        model.has_trained = False
        return module

    def _trains(self, module: nn.Module, model: _Model, strategy: RankStrategy) -> nn.Module:
        """Return the module to call in training, and prepare the averaging of its gradients."""
        self.draw_otherwise()
        model.has_trained = True
        if not model.is_distributed and model.has_stepped and model.all_train:
            self._wrap(module, model, strategy)
        if not model.is_distributed:
            return module
        if model.is_left_out is model.all_train:
            # DDP would wait for the gradient of a frozen parameter
            model.is_left_out = not model.all_train
            self._average_what_is_left()
        if model.is_left_out:
            return module
        called = model.called or module
        strategy.sync_gradients(called, enabled=not self._accumulation.holds)
        return called

    def stepped(self, optimizer: Optimizer) -> None:
        """Note the step of an optimizer, and compare the ranks if that is due.

        Raises:
            RuntimeError: if the ranks do not train one model.
        """
        self._models.has_stepped = True
        waiting = [one for one in self._models.called.items() if not one[1].is_distributed]
        trained = {id(p) for p in parameters_of([optimizer])} if waiting else set[int]()
        for module, model in waiting:
            if not trained.isdisjoint(map(id, model.trained)):
                model.has_stepped = True
                parameters = module.parameters()
                model.has_unused = any(p.requires_grad and p.grad is None for p in parameters)
        self._check.stepped()

    def _site(self, *, has_unused: bool = False) -> Site:
        return Site(
            rank=self._group.rank,
            world_size=self._group.world_size,
            options=self._options,
            optimizers=self._optimizers(),
            blocks=lambda module: blocks_of([module]),
            has_unused=has_unused,
        )

    def _first_called(self, module: nn.Module, strategy: Strategy) -> _Model | None:
        """Prepare a module that is called for the first time; return None if nothing trains it.

        All ranks get the first rank's parameters and buffers. A strategy that replaces parameters
        acts at once, so that optimizers get the new ones before their first step. Other strategies
        act after the first step.
        """
        optimized = {id(p) for p in parameters_of(self._optimizers())}
        owned = [p for p in module.parameters() if id(p) in optimized]
        trained = [p for p in owned if p.requires_grad]
        if not trained:
            # Before the first step an optimizer may still be built for it.
            if self._models.has_stepped and not owned:
                self._models.untrained.add(module)
            return None
        model = self._models.called[module] = _Model(trained)
        if not isinstance(strategy, RankStrategy):
            called = strategy.distribute(module, self._site())
            model.called = called if called is not module else None
            return model
        self._group.initialize()
        for tensor in (*module.parameters(), *module.buffers()):
            send_out(tensor)
        self._models.equal.update({id(p): p for p in module.parameters()})
        if strategy.replaces_parameters:
            before = dict(module.named_parameters())
            strategy.distribute(module, self._site())
            after = dict(module.named_parameters())
            model.trained = [p for p in after.values() if p.requires_grad]
            model.is_distributed = True
            self.patches.replaced(before, after)
        self._adopt_optimizers(strategy)
        self._average_what_is_left()
        return model

    def _adopt_optimizers(self, strategy: RankStrategy) -> None:
        self._models.has_new_optimizers = False
        for optimizer in self._optimizers():
            if optimizer not in self._models.adopted:
                self._models.adopted.add(optimizer)
                strategy.adopt(optimizer, self._site())

    def _wrap(self, module: nn.Module, model: _Model, strategy: RankStrategy) -> None:
        # ranks may have used different parameters, but must build DDP alike
        flag = torch.tensor(int(model.has_unused))
        distributed.all_reduce(flag, distributed.ReduceOp.MAX)
        model.trained = [p for p in module.parameters() if p.requires_grad]
        called = strategy.distribute(module, self._site(has_unused=bool(flag)))
        model.called = called if called is not module else None
        model.is_distributed = True
        self._average_what_is_left()

    def _average_what_is_left(self) -> None:
        """Have averaged one by one what the strategy does not average; new ones are made equal."""
        models = self._models.called
        by_strategy = {
            id(p)
            for model in models.values()
            if model.is_distributed and not model.is_left_out
            for p in model.trained
        }
        owned = [p for module in models for p in module.parameters()]
        every = {id(p): p for p in (*parameters_of(self._optimizers()), *owned)}
        left = [p for p in every.values() if id(p) not in by_strategy and not is_sharded(p)]
        for parameter in left:
            if self._models.equal.get(id(parameter)) is not parameter:
                send_out(parameter)
                self._models.equal[id(parameter)] = parameter
        self._models.left[:] = left

    def after_backward(self, call: BackwardPass) -> None:  # noqa: ARG002
        """Average gradients of single parameters over the ranks, which the strategy leaves to it.

        Those are: in the first step, when it is not yet known which parameters get gradients, all;
        then those that no called model owns, and those of a model of which a part is frozen at
        present. All ranks go through the same list in the same order, because each collective call
        must meet its counterparts. A gradient that only some ranks have counts as zero on the
        others. Averaging a gradient a second time does not change it. Micro-batches whose step is
        held back are left out.
        """
        trained = [p for p in self._models.left if p.requires_grad]
        if not trained or self._accumulation.holds:
            return
        # A rank without a gradient must take part as well, else the others wait for it.
        device = trained[0].device
        has = torch.tensor([p.grad is not None for p in trained], dtype=torch.uint8, device=device)
        distributed.all_reduce(has, distributed.ReduceOp.MAX)
        for parameter, is_there in zip(trained, has.tolist(), strict=True):
            if is_there:
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                distributed.all_reduce(parameter.grad)
                parameter.grad /= self._group.world_size


def send_out(tensor: torch.Tensor) -> None:
    """Overwrite a tensor on all ranks with the first rank's values."""
    tensor = tensor.detach()
    distributed.broadcast(tensor.view(torch.uint8) if tensor.dtype == torch.bool else tensor, 0)


@dataclass(eq=False)
class _Model:
    """What is known of one model that is called and trained.

    Attributes:
        trained: Its parameters that optimizers train when it is first called; from when it is
            distributed on, those that the strategy averages.
        called: The wrapper that is called instead of it; None if it was changed in place.
        has_stepped: An optimizer has made a step with it.
        is_distributed: The strategy has acted on it.
        is_left_out: A part of it is frozen at present, so the strategy does not run it.
        has_unused: Some of its parameters got no gradient in the first step.
        has_trained: It was trained since its buffers were last made equal.
    """

    trained: list[nn.Parameter]
    called: nn.Module | None = None
    has_stepped: bool = False
    is_distributed: bool = False
    is_left_out: bool = False
    has_unused: bool = False
    has_trained: bool = False

    @property
    def all_train(self) -> bool:
        """Whether no parameter that was trained is frozen at present."""
        return all(p.requires_grad for p in self.trained)


@dataclass
class _Models:
    """The program's models and optimizers, as far as the strategy knows them.

    Attributes:
        called: The models that are trained.
        untrained: Modules that no optimizer trains.
        adopted: Optimizers that the strategy has prepared.
        equal: Parameters of which the ranks have equal values, by id.
        left: Parameters whose gradients are averaged one by one; the same on all ranks. These
            references are strong, because ranks must keep the same.
        has_stepped: An optimizer has made a step.
        has_new_optimizers: An optimizer may not be prepared yet.
    """

    called: WeakKeyDictionary[nn.Module, _Model] = field(default_factory=WeakKeyDictionary)
    untrained: WeakSet[nn.Module] = field(default_factory=WeakSet)
    adopted: WeakSet[Optimizer] = field(default_factory=WeakSet)
    equal: WeakValueDictionary[int, nn.Parameter] = field(default_factory=WeakValueDictionary)
    left: list[nn.Parameter] = field(default_factory=list)
    has_stepped: bool = False
    has_new_optimizers: bool = False
