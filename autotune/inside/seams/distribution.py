"""The seam of distribution: models that the program trains become one model on several devices.

The program keeps its own objects. When it first calls a model that some optimizer trains, all ranks
take the first rank's weights. In the first step, gradients are averaged parameter by parameter
after the backward pass. Then it is known which parameters get gradients, and the strategy averages
from there on. Parameters that no called model owns are still averaged one by one.

Once each optimizer has made its third step, the seam checks that the ranks' parameters and
gradients are equal and that they do not all train on the same batches; otherwise it raises an
error. Parameters are compared again later, at ever longer intervals.

Covered: several models and optimizers; parts that are frozen, for good or from step to step;
several losses in a step; parameters outside of any called module; unused parameters; models,
optimizers and parameter groups that are added later; clipping by the global norm; metrics of
``ReduceLROnPlateau``; BatchNorm's statistics before an evaluation.

Not covered: parameters that get gradients only in some steps; decisions that the program bases on
its own loss, which is that of one rank's share; random numbers from the program's own generators;
buffers of models that are first called after the check. A model whose optimizer makes its first
step after the check is averaged one by one for good.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any
from weakref import WeakKeyDictionary, WeakSet

import torch
from torch import distributed, nn
from torch.optim import Optimizer

from autotune.inside.data.nested import first_tensor
from autotune.inside.hubs.backward import BackwardHub
from autotune.inside.hubs.patches import Seam
from autotune.inside.ranks.group import Group
from autotune.inside.seams.accumulation import AccumulationSeam
from autotune.inside.seams.averaging import AveragingSeam, Reached, send_out
from autotune.inside.seams.checkpoint import blocks_of
from autotune.inside.seams.clipping import ClippingSeam
from autotune.inside.seams.program_ddp import ProgramDdpSeam
from autotune.inside.seams.rank_checks import RankChecks, parameters_of
from autotune.inside.seams.rank_seeds import RankSeedsSeam
from autotune.inside.seams.scheduler import PlateauSeam
from autotune.inside.seams.shard_guard import ShardGuardSeam
from autotune.inside.seams.weighing import WeighingSeam
from autotune.knobs.strategies import STRATEGIES, RankStrategy, Site, Strategy
from autotune.program.config import KnobValue


class DistributionSeam(Seam):
    """Applies a strategy to the models that the program calls and trains.

    ``Steering`` chooses the strategy before the program starts, on the main thread. The forward
    seam calls ``route()`` at each outermost module call, and ``SeamSet`` calls ``stepped()`` after
    each optimizer step, both on the thread that trains. All ranks must make these calls in the same
    order, because many of them communicate.

    Args:
        group: The processes that train together.
        optimizers: Returns the living optimizers.
        accumulation: Tells which micro-batches make no step.
        backward: The hub that ``averaging`` and ``weighing`` join if several ranks train.
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
        self.averaging = AveragingSeam(group, accumulation)
        self.weighing = WeighingSeam(group)
        self._strategy: Strategy | None = None
        self._options: dict[str, KnobValue] = {}
        self._called: WeakKeyDictionary[nn.Module, _Model] = WeakKeyDictionary()
        self._untrained: WeakSet[nn.Module] = WeakSet()
        self._adopted: WeakSet[Optimizer] = WeakSet()
        self._clipping = ClippingSeam()
        self._shard_guard = ShardGuardSeam()
        self.randomness = RankSeedsSeam(group)
        self._seen: set[int] = set()
        self._has_stepped = False
        self._checks = RankChecks(group, optimizers)
        self._plateau = PlateauSeam(group)
        self._program_ddp = ProgramDdpSeam()
        self._has_new = False

    def use(self, strategy: str) -> None:
        """Choose the strategy by its name.

        ``single`` and ``own`` leave the program's models alone, so the seam does nothing then.
        """
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
        return self._rank_strategy is not None

    @property
    def _rank_strategy(self) -> RankStrategy | None:
        """The strategy if it trains with several ranks, else None."""
        return self._strategy if isinstance(self._strategy, RankStrategy) else None

    def install(self) -> None:
        """Begin to act, as far as the strategy and the options require it."""
        if self._strategy is None:
            if self._options:
                self._program_ddp.install(self._options)
            return
        if self.has_ranks:
            self._backward.join(self.averaging)
            self._backward.join(self.weighing)
            self._clipping.install()
            self._plateau.install()
            self._checks.begin()

    def remove(self) -> None:
        """Put PyTorch back as it was. Models that were distributed stay so."""
        self._program_ddp.remove()
        self._plateau.remove()
        self._checks.end()
        self._shard_guard.remove()
        self._clipping.remove()
        self.averaging.forget()
        self.randomness.remove()

    def agree(self) -> None:
        """Seed random numbers alike on all ranks, so that they set up the program alike."""
        if self.has_ranks and self._group.world_size > 1:
            self.randomness.agree()

    def draw_otherwise(self) -> None:
        """Give each rank its own random numbers from here on, because training begins.

        Equal numbers would make all ranks drop and augment alike. Later calls have no effect.
        """
        if self.has_ranks:
            self.randomness.differ()

    def loader_begins(self) -> None:
        """Note that the program iterates a loader whose data the ranks share out among them."""
        self._checks.has_loader = True
        self.draw_otherwise()

    def groups_changed(self) -> None:
        """Take note of an optimizer that was built or got parameters.

        Parameters that a strategy has replaced are handed over to the optimizer; those that no
        called model owns are averaged one by one from here on.
        """
        self._untrained.clear()
        self._has_new = True
        if (strategy := self._rank_strategy) and self._called:
            for optimizer in self._optimizers():
                if replaced := self._clipping.replacements(parameters_of([optimizer])):
                    strategy.hand_over(optimizer, replaced)
            self.averaging.add(parameters_of(self._optimizers()), self._owned())

    def route(self, module: nn.Module, inputs: tuple[Any, ...]) -> nn.Module:
        """Return the module to call instead of an outermost module, which may be the module itself.

        The first call of a trained module distributes it, or prepares that. During evaluation the
        ranks call the program's own module, with buffers made equal.

        Args:
            module: The outermost module that the program calls.
            inputs: Its arguments.
        """
        if self._strategy is None or module in self._untrained:
            return module
        model = self._called.get(module)
        if model is None:
            # Tensors made in inference mode cannot be trained, and the first call may be in it.
            with torch.inference_mode(mode=False):
                model = self._meet(module, self._strategy)
        if model is None:
            return module
        ranks = self._rank_strategy
        if self._has_new and ranks is not None:
            self._adopt_optimizers(ranks)
        if not torch.is_grad_enabled():
            model.settle_buffers(module, self._group)
            return module if ranks is not None else model.called or module
        if ranks is not None:
            self._begin_pass(model, inputs)
        if not model.is_distributed and model.trained <= self._seen and model.suits_ddp:
            self._distribute(module, model, self._strategy)
        if not model.is_distributed or self._stands_aside(model):
            return module
        called = model.called or module
        if ranks is not None:
            ranks.sync_gradients(called, enabled=not self._accumulation.holds)
        return called

    def _begin_pass(self, model: _Model, inputs: tuple[Any, ...]) -> None:
        self.draw_otherwise()
        tensor = first_tensor(inputs)
        self.weighing.samples = None if tensor is None else len(tensor)
        # Batches before the first step are not compared: the program may have drawn them at set-up,
        # when all ranks draw the same random numbers.
        if self._has_stepped:
            self._checks.note_batch(inputs)
        model.has_trained = True
        if model.reached is not None:
            model.reached.passes = 0

    @property
    def is_settling(self) -> bool:
        """Whether ``stepped()`` must be called after each step of an optimizer.

        With several ranks that is always so, for the later comparisons. With one rank it is so
        until the check.
        """
        if self._strategy is None:  # asked in each step of a program that has none
            return False
        return self._checks.is_noting or (self.has_ranks and self._group.world_size > 1)

    def stepped(self, optimizer: Optimizer) -> None:
        """Note the step of an optimizer, and compare the ranks if that is due.

        Raises:
            RuntimeError: if the ranks do not train one model; see ``RankChecks.stepped()``.
        """
        if self._checks.is_noting:
            self._note_step(optimizer)
        if self._checks.stepped(optimizer, calls_models=bool(self._called)):
            self.weighing.settle()

    def _note_step(self, optimizer: Optimizer) -> None:
        """Note in one of the first steps which parameters are trained, and which got gradients."""
        self._has_stepped = True
        self._seen |= {id(p) for p in parameters_of([optimizer])}
        for module, model in self._called.items():
            if not model.is_distributed and model.trained <= self._seen:
                model.note_gradients(module)

    def _stands_aside(self, model: _Model) -> bool:
        """Tell whether the strategy must not run this pass, because a parameter is frozen now.

        DDP would wait for the gradient of the frozen parameter. As long as it is frozen, the
        model's gradients are averaged one by one.
        """
        if model.reached is None:
            return False
        stands_aside = not all(p.requires_grad for p in model.reached.parameters)
        if stands_aside == model.reached.is_left:
            move = self.averaging.hold if stands_aside else self.averaging.release
            move(model.reached)
        return stands_aside

    def _site(self, *, has_unused: bool = False) -> Site:
        return Site(
            rank=self._group.rank,
            world_size=self._group.world_size,
            options=self._options,
            optimizers=self._optimizers(),
            blocks=lambda module: blocks_of([module]),
            has_unused=has_unused,
        )

    def _meet(self, module: nn.Module, strategy: Strategy) -> _Model | None:
        """Prepare a module that is called for the first time; return None if nothing trains it.

        All ranks get the first rank's parameters and buffers. A strategy that replaces parameters
        acts at once, so that optimizers get the new ones before their first step. Other strategies
        act after the first step.
        """
        optimized = {id(p) for p in parameters_of(self._optimizers())}
        owned = [p for p in module.parameters() if id(p) in optimized]
        trained = {id(p) for p in owned if p.requires_grad}
        if not trained:
            # Before the first step an optimizer may still be built for it.
            if self._has_stepped and not owned:
                self._untrained.add(module)
            return None
        if not isinstance(strategy, RankStrategy):
            model = self._called[module] = _Model(set())
            self._distribute(module, model, strategy)
            return model
        self._group.initialize()
        model = self._called[module] = _Model(trained)
        for tensor in (*module.parameters(), *module.buffers()):
            send_out(tensor)
        if strategy.replaces_parameters:
            before = dict(module.named_parameters())
            self.averaging.drop(before.values())
            self._shard_guard.check(before)
            strategy.distribute(module, self._site())
            after = dict(module.named_parameters())
            model.is_distributed = True
            self._clipping.replaced(before, after)
            self._shard_guard.guard(before, after)
        else:
            model.reached = self.averaging.watch(list(module.parameters()))
        self._adopt_optimizers(strategy)
        self.averaging.add(parameters_of(self._optimizers()), self._owned())
        return model

    def _adopt_optimizers(self, strategy: RankStrategy) -> None:
        self._has_new = False
        for optimizer in self._optimizers():
            if optimizer not in self._adopted:
                self._adopted.add(optimizer)
                strategy.adopt(optimizer, self._site())

    def _owned(self) -> list[nn.Parameter]:
        return [p for module in self._called for p in module.parameters()]

    def _distribute(self, module: nn.Module, model: _Model, strategy: Strategy) -> None:
        has_unused = False
        if self.has_ranks:  # ranks may have used different parameters, but must build DDP alike
            flag = torch.tensor(int(model.has_unused))
            distributed.all_reduce(flag, distributed.ReduceOp.MAX)
            has_unused = bool(flag)
            assert model.reached is not None, "it was averaged one by one until now"
            model.reached.parameters = [p for p in module.parameters() if p.requires_grad]
            self.averaging.release(model.reached)
        called = strategy.distribute(module, self._site(has_unused=has_unused))
        model.called = called if called is not module else None
        model.is_distributed = True


class _Model:
    """What the distribution seam knows of one model that is called and trained.

    The seam makes it when the model is first called, and uses it on the thread that trains.

    Args:
        trained: Ids of the parameters that optimizers train when the model is first called.

    Attributes:
        called: The wrapper that is called instead of it; None if it was changed in place.
        is_distributed: The strategy has acted on it.
        reached: Its parameters, whose gradients are averaged one by one or by the strategy; None if
            the strategy has replaced its parameters.
        has_unused: Some of its parameters got no gradient in the first step.
        has_trained: It was trained since its buffers were last made equal.
    """

    def __init__(self, trained: set[int]) -> None:
        self.trained = trained
        self.called: nn.Module | None = None
        self.is_distributed = False
        self.reached: Reached | None = None
        self.has_unused = False
        self.has_trained = False

    @property
    def suits_ddp(self) -> bool:
        """Whether DDP can average its gradients.

        DDP needs one backward pass after each call. Nothing that was trained at first may be frozen
        at this moment, because DDP would leave it out for good.
        """
        if self.reached is None:
            return True
        trained = (p for p in self.reached.parameters if id(p) in self.trained)
        return not self.reached.several and all(p.requires_grad for p in trained)

    def note_gradients(self, module: nn.Module) -> None:
        """Note whether a parameter got no gradient in the step that has just been made."""
        self.has_unused = any(p.requires_grad and p.grad is None for p in module.parameters())

    def settle_buffers(self, module: nn.Module, group: Group) -> None:
        """Make all ranks evaluate the same model, by giving them the first rank's buffers.

        During training each rank gathers its own statistics, such as BatchNorm's.
        """
        if self.has_trained and group.world_size > 1:
            for buffer in module.buffers():
                send_out(buffer)
        self.has_trained = False
