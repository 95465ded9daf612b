"""Purity: whether a pass through a block changes more than can be put back for a second one."""

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
LOOKED_AT = (2, 3)  # passes of a block; the first one may fill caches
OF_MODULES = frozenset(vars(nn.Module()))


class Purity:
    """Looks at some passes of each block in the untouched steps.

    What ``Recomputing`` puts back is left out: buffers, attributes that come to stand for something
    else, lists and caches among the arguments, and the random states of torch, Python and NumPy.
    """

    def __init__(self) -> None:
        self._passes: WeakKeyDictionary[nn.Module, int] = WeakKeyDictionary()
        self._changed: dict[type[nn.Module], str] = {}

    def watched(self, forward: Call) -> Call:
        """Return a block class's ``forward`` that looks at what it changes."""

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
        """Return what a pass through such blocks changes, as ``Block: name``; empty for nothing."""
        classes = {type(block) for block in blocks}
        found = (f"{c.__name__}: {self._changed[c]}" for c in classes if c in self._changed)
        return next(found, "")

    def _looks_at(self, block: nn.Module) -> bool:
        if not torch.is_grad_enabled() or is_in_backward() or is_transforming():
            return False
        self._passes[block] = self._passes.get(block, 0) + 1
        return self._passes[block] in LOOKED_AT


def _given(
    forward: Call, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[str, Any]]:
    """Yield a block's arguments by name, as far as a second pass would get the same objects."""
    names = list(inspect.signature(forward).parameters)[1:]
    named = zip_longest(names[: len(args)], args, fillvalue="*")
    return (
        (f"its argument {name}", structure_of(value)) for name, value in (*named, *kwargs.items())
    )


def _held(block: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield by name what else a pass may change."""
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
    """Return the functions of a class that may name more than it holds."""
    return [
        function
        for own in cls.__mro__
        if own.__module__.partition(".")[0] not in {"torch", "builtins"}
        for function in vars(own).values()
        if isinstance(function, FunctionType)
    ]


def _part_of(holder: Any, before: Any, now: Any) -> str:
    """Return the name within a function that stands for something else now."""
    if not isinstance(holder, FunctionType):
        return ""
    names = [name for (name, was), (_, is_) in zip(before, now, strict=False) if was != is_]
    return f"() changes {names[0]}" if names else "()"
