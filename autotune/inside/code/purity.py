"""Find blocks whose forward pass changes state that could not be restored for a second pass.

Activation checkpointing runs a block's forward twice. State that the first pass changed and nothing
restores would make the second pass compute something else.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from itertools import zip_longest
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import nn

from autotune.inside.code.autograd import is_in_backward, is_transforming
from autotune.inside.code.state import state_of
from autotune.inside.code.structure import structure_of

Call = Callable[..., Any]
LOOKED_AT = (2, 3)  # passes of a block that are compared; the first one may fill caches
OF_MODULES = frozenset(vars(nn.Module()))


class Purity:
    """Compares a block's state before and after some of its forward passes.

    The checkpoint seam replaces the ``forward`` of block classes in the first, untouched steps; the
    comparison runs there, on the thread that trains. Left out is all that ``Recomputing`` restores:
    buffers, attributes that are rebound, lists and caches among the arguments, and the random
    states of torch, Python and NumPy.
    """

    def __init__(self) -> None:
        self._passes: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
        self._changed: dict[type[nn.Module], str] = {}

    def watched(self, forward: Call) -> Call:
        """Return a block class's ``forward`` that also notes what it changes."""

        @wraps(forward)
        def watching(block: nn.Module, *args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_compiling() or not self._looks_at(block):
                return forward(block, *args, **kwargs)
            held = (*_given(forward, args, kwargs), *_held(block))
            before = [(name, holder, state_of(holder)) for name, holder in held]
            output = forward(block, *args, **kwargs)
            for name, holder, state in before:
                if (now := state_of(holder)) != state:
                    self._changed.setdefault(type(block), f"{name}{_part_of(holder, state, now)}")
            return output

        return watching

    def changed(self, blocks: Iterable[nn.Module]) -> str:
        """Return what a pass through such blocks changes, as ``Block: name``; empty if nothing."""
        classes = {type(block) for block in blocks}
        found = (f"{c.__name__}: {self._changed[c]}" for c in classes if c in self._changed)
        return next(found, "")

    def _looks_at(self, block: nn.Module) -> bool:
        """Return whether to compare this pass: it must train, and be one of ``LOOKED_AT``."""
        if not torch.is_grad_enabled() or is_in_backward() or is_transforming():
            return False
        self._passes[block] = self._passes.get(block, 0) + 1
        return self._passes[block] in LOOKED_AT


def _given(
    forward: Call, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[str, Any]]:
    """Yield a block's arguments with their names.

    They are copied by ``structure_of``, as recomputation does it, so that a list that the block
    appends to does not count: the second pass gets its own.
    """
    names = list(inspect.signature(forward).parameters)[1:]
    named = zip_longest(names[: len(args)], args, fillvalue="*")
    return (
        (f"its argument {name}", structure_of(value)) for name, value in (*named, *kwargs.items())
    )


def _held(block: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield a block's attributes, parameters and the variables of its functions, with their names.

    Hooks of the block itself are left out, because they run outside of its ``forward``; those of
    modules inside it run within.
    """
    buffers = {id(buffer) for buffer in block.buffers()}
    for path, module in block.named_modules():
        own = {k: v for k, v in vars(module).items() if k not in OF_MODULES}
        own |= {name: p for name, p in module._parameters.items() if p is not None}  # noqa: SLF001
        for name, value in own.items():
            if id(value) not in buffers:
                yield f"{path}.{name}".lstrip("."), value
        functions = _functions_of(type(module))
        if module is not block:
            functions += [*module._forward_pre_hooks.values(), *module._forward_hooks.values()]  # noqa: SLF001
        for function in functions:
            yield getattr(function, "__name__", type(function).__name__), function


def _functions_of(cls: type[nn.Module]) -> list[Any]:
    """Return the functions that a module's classes define, except torch's own classes.

    A function's global and closure variables may change as well.
    """
    return [
        function
        for own in cls.__mro__
        if own.__module__.partition(".")[0] not in {"torch", "builtins"}
        for function in vars(own).values()
        if isinstance(function, FunctionType)
    ]


def _part_of(holder: Any, before: Any, now: Any) -> str:
    """Return which variable of a function has changed, as text to append to the function's name."""
    if not isinstance(holder, FunctionType):
        return ""
    names = [name for (name, was), (_, is_) in zip(before, now, strict=False) if was != is_]
    return f"() changes {names[0]}" if names else "()"
