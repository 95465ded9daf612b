"""The seam of activation checkpointing: blocks forget what they computed, and compute it again.

Blocks are found by structure: modules of one class, with children of their own, that lie several in
``nn.ModuleList`` or ``nn.Sequential`` containers; of several such classes the one with the most
parameters. What does not compute by its class's ``forward`` is no block: a scripted module, one
that was given a ``forward`` of its own. torch's own non-reentrant ``checkpoint`` does the work,
within ``recompute``.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from inspect import getattr_static
from types import FunctionType
from typing import Any
from weakref import WeakSet

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from autotune.inside.code.autograd import is_transforming
from autotune.inside.code.purity import Purity
from autotune.inside.seams.base import Patches, Seam
from autotune.inside.seams.recompute import Recomputing

MIN_BLOCKS = 2


class CheckpointSeam(Seam):
    """Has every n-th block of the model computed again in the backward pass.

    Attributes:
        purity: Knows what passes through blocks were seen to change for good.
    """

    def __init__(self) -> None:
        self.purity = Purity()
        self._recomputing = Recomputing()
        self._every = 0
        self._chosen: WeakSet[nn.Module] = WeakSet()
        self._patches = Patches()

    @property
    def is_needed(self) -> bool:
        """Some blocks are to forget."""
        return self._every > 0

    def choose(self, every: int) -> None:
        """Say which blocks forget: every n-th, 0 for none."""
        self._every = every

    def act_on(self, roots: Iterable[nn.Module]) -> None:
        """Choose among the blocks of these models; forgets an earlier choice."""
        self._patches.undo()
        self._chosen.clear()
        if not self._every:
            return
        blocks = blocks_of(roots)
        for block in blocks[:: self._every]:
            self._chosen.add(block)
        if blocks:
            self._wrap(type(blocks[0]))

    def watch(self, root: nn.Module) -> None:
        """Watch, in the untouched steps, what passes through this model's blocks change."""
        for cls in {type(block) for blocks in _kinds_of([root]) for block in blocks}:
            self._patches.replace(cls, "forward", self.purity.watched(cls.forward))

    def remove(self) -> None:
        """Put the model's classes back as they were."""
        self._patches.undo()
        self._chosen.clear()

    def _wrap(self, cls: type[nn.Module]) -> None:
        """Of the class, so that models are saved and copied as ever."""
        original = cls.forward
        chosen, run = self._chosen, self._recomputing.run

        def forward(block: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if block not in chosen or not torch.is_grad_enabled() or is_transforming():
                return original(block, *args, **kwargs)
            if torch.compiler.is_compiling():  # the compiler sees by itself what changes
                return checkpoint(original, block, *args, use_reentrant=False, **kwargs)
            return run(original, block, args, kwargs)

        self._patches.replace(cls, "forward", forward)


def blocks_of(roots: Iterable[nn.Module]) -> list[nn.Module]:
    """Return the repeated blocks of some models in order, empty where nothing is repeated."""
    repeated = [blocks for blocks in _kinds_of(roots) if len(blocks) >= MIN_BLOCKS]
    return max(repeated, key=_parameters, default=[])


def _kinds_of(roots: Iterable[nn.Module]) -> list[list[nn.Module]]:
    """Return the blocks of each class that lie in containers."""
    kinds: dict[type[nn.Module], list[nn.Module]] = defaultdict(list)
    for root in roots:
        for container in root.modules():
            if isinstance(container, (nn.ModuleList, nn.Sequential)):
                for block in container.children():
                    if block not in kinds[type(block)] and _is_block(block):
                        kinds[type(block)].append(block)
    return list(kinds.values())


def _is_block(module: nn.Module) -> bool:
    if isinstance(module, (nn.ModuleList, nn.Sequential, nn.ModuleDict)):
        return False
    forward = getattr_static(type(module), "forward", None)
    if not isinstance(forward, FunctionType) or "forward" in vars(module):
        return False
    return any(True for _ in module.children()) and _parameters([module]) > 0


def _parameters(modules: Iterable[nn.Module]) -> int:
    return sum(p.numel() for module in modules for p in module.parameters())
