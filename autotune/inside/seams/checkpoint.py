"""The seam of activation checkpointing: blocks forget what they computed, and compute it again.

Blocks are found by structure: modules of one class, with children of their own, that lie several in
``nn.ModuleList`` or ``nn.Sequential`` containers; of several such classes the one with the most
parameters. torch's own non-reentrant ``checkpoint`` does the work, random numbers included.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import Any
from weakref import WeakSet

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from autotune.inside.seams.base import Patches

LEAST_BLOCKS = 2


class CheckpointSeam:
    """Has every n-th block of the model computed again in the backward pass."""

    def __init__(self) -> None:
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

    def remove(self) -> None:
        """Put the model's classes back as they were."""
        self._patches.undo()
        self._chosen.clear()

    def _wrap(self, cls: type[nn.Module]) -> None:
        """Of the class, so that models are saved and copied as ever."""
        original = cls.forward
        chosen = self._chosen

        def forward(block: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if block in chosen and torch.is_grad_enabled():
                return checkpoint(original, block, *args, use_reentrant=False, **kwargs)
            return original(block, *args, **kwargs)

        self._patches.replace(cls, "forward", forward)


def blocks_of(roots: Iterable[nn.Module]) -> list[nn.Module]:
    """Return the repeated blocks of some models in order, empty where nothing is repeated."""
    kinds: dict[type[nn.Module], list[nn.Module]] = defaultdict(list)
    for root in roots:
        for container in root.modules():
            if isinstance(container, (nn.ModuleList, nn.Sequential)):
                for block in container.children():
                    if block not in kinds[type(block)] and _is_block(block):
                        kinds[type(block)].append(block)
    repeated = [blocks for blocks in kinds.values() if len(blocks) >= LEAST_BLOCKS]
    return max(repeated, key=_parameters, default=[])


def _is_block(module: nn.Module) -> bool:
    is_container = isinstance(module, (nn.ModuleList, nn.Sequential, nn.ModuleDict))
    return not is_container and any(True for _ in module.children()) and _parameters([module]) > 0


def _parameters(modules: Iterable[nn.Module]) -> int:
    return sum(p.numel() for module in modules for p in module.parameters())
