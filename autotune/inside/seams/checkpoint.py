"""The seam of activation checkpointing: blocks drop their activations and recompute them.

Blocks are found by structure: they are modules of one class that contain other modules, and several
of them lie in ``nn.ModuleList`` or ``nn.Sequential`` containers. If there are several such classes,
the one with the most parameters counts. A module that does not compute by its class's ``forward``
is left out: a scripted module, or an instance with its own ``forward``.

torch's non-reentrant ``checkpoint`` does the work: it keeps the inputs, torch's random state and
autocast. Sound models need two things more. Buffers are in the recomputation as they were when the
block first ran, and afterwards as the program left them: BatchNorm counts a batch once, spectral
norm divides by the same vectors. And what a block adds to a list or cache among its arguments, as
attention does to its keys, is added once. Other state that a pass changes (attributes, parameters,
random states of Python and NumPy) is not emulated: it shows in what is trained.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from inspect import getattr_static
from types import FunctionType
from typing import Any
from weakref import WeakSet

import torch
from torch import nn
from torch.nn.utils.stateless import _reparametrize_module
from torch.utils.checkpoint import checkpoint

from autotune.inside.code.structure import structure_of
from autotune.inside.hubs.patches import Patches, Seam
from autotune.inside.seams.forward import is_transforming

MIN_BLOCKS = 2
LARGE_BYTES = 1 << 20  # of a buffer that is kept only if its version has changed in the first pass


class CheckpointSeam(Seam):
    """Has every n-th block of the model recomputed in the backward pass.

    ``Steering`` calls ``act_on()`` on the main thread, between two steps or before the first;
    ``SeamSet`` calls ``act_on()`` again after the third step, when the models are known.
    The replaced ``forward`` runs on the thread that calls the block.

    Attributes:
        every: How many blocks are recomputed: every n-th one, or none if it is 0.
    """

    def __init__(self) -> None:
        self.every = 0
        self._chosen: WeakSet[nn.Module] = WeakSet()
        self._classes: set[type[nn.Module]] = set()
        self._patches = Patches()

    @property
    def is_needed(self) -> bool:
        """Whether any block is to be recomputed."""
        return self.every > 0

    def act_on(self, roots: Iterable[nn.Module]) -> None:
        """Apply the choice to the blocks of these models, instead of an earlier choice."""
        self.remove()
        self.add(roots)

    def add(self, roots: Iterable[nn.Module]) -> None:
        """Apply the choice to the blocks of further models.

        It is their class that is changed, because an attribute of an instance would be copied and
        pickled together with the model.
        """
        blocks = blocks_of(roots) if self.every else []
        self._chosen.update(blocks[:: self.every or 1])
        for cls in {type(block) for block in blocks} - self._classes:
            self._classes.add(cls)
            self._wrap(cls)

    def remove(self) -> None:
        """Put the model's classes back as they were."""
        self._patches.undo()
        self._chosen.clear()
        self._classes.clear()

    def _wrap(self, cls: type[nn.Module]) -> None:
        original, chosen = cls.forward, self._chosen

        def forward(block: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if block not in chosen or not torch.is_grad_enabled() or is_transforming():
                return original(block, *args, **kwargs)
            if torch.compiler.is_compiling():  # the compiler tracks state changes itself
                return checkpoint(original, block, *args, use_reentrant=False, **kwargs)
            return _recomputed(original, block, args, kwargs)

        self._patches.replace(cls, "forward", forward)


def _recomputed(
    forward: Callable[..., Any], block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Any:
    names, count = tuple(kwargs), len(args)
    given = (*args, *kwargs.values())
    first = [given]
    versions = {name: buffer._version for name, buffer in block.named_buffers()}  # noqa: SLF001
    given_buffers = dict(block.named_buffers())
    buffers = {name: buffer.detach().clone() for name, buffer in given_buffers.items()}
    empty = [(m, name) for m in block.modules() for name, b in m._buffers.items() if b is None]  # noqa: SLF001

    def compute(*values: Any) -> Any:
        return forward(block, *values[:count], **dict(zip(names, values[count:], strict=True)))

    def call(*kept: Any) -> Any:
        if first:
            output = compute(*first.pop())
            for name, buffer in block.named_buffers():  # such as masks, which stay as they are
                is_same = given_buffers.get(name) is buffer and versions[name] == buffer._version  # noqa: SLF001
                if is_same and buffer.nbytes >= LARGE_BYTES:
                    del buffers[name]
            return output
        # Copies of copies, because ``retain_graph`` allows several recomputations
        fresh = {name: buffer.clone() for name, buffer in buffers.items()}
        with _reparametrize_module(block, fresh, tie_weights=True), _without(empty):
            return compute(*map(structure_of, kept))

    return checkpoint(call, *map(structure_of, given), use_reentrant=False)


@contextmanager
def _without(empty: Sequence[tuple[nn.Module, str]]) -> Iterator[None]:
    """Take away the buffers that were None before the first pass, and put them back."""
    now = [(module, name, getattr(module, name)) for module, name in empty]
    for module, name in empty:
        setattr(module, name, None)
    try:
        yield
    finally:
        for module, name, buffer in now:
            setattr(module, name, buffer)


def blocks_of(roots: Iterable[nn.Module]) -> list[nn.Module]:
    """Return the repeated blocks of some models, in the order of their containers.

    A block class counts from ``MIN_BLOCKS`` blocks on. The list is empty if nothing is repeated.
    """
    kinds: dict[type[nn.Module], list[nn.Module]] = defaultdict(list)
    modules = (module for root in roots for module in root.modules())
    containers = (one for one in modules if isinstance(one, (nn.ModuleList, nn.Sequential)))
    for block in (block for container in containers for block in container.children()):
        if block not in kinds[type(block)] and _is_block(block):
            kinds[type(block)].append(block)
    repeated = [blocks for blocks in kinds.values() if len(blocks) >= MIN_BLOCKS]
    return max(repeated, key=_parameters, default=[])


def _is_block(module: nn.Module) -> bool:
    if isinstance(module, (nn.ModuleList, nn.Sequential, nn.ModuleDict)):
        return False
    forward = getattr_static(type(module), "forward", None)
    if not isinstance(forward, FunctionType) or "forward" in vars(module):
        return False
    return any(True for _ in module.children()) and _parameters([module]) > 0


def _parameters(modules: Iterable[nn.Module]) -> int:
    return sum(p.numel() for module in modules for p in module.parameters())
