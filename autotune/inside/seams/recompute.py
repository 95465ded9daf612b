"""Recomputation: a block computes again from the state in which it computed at first.

torch's checkpoint keeps a block's inputs and torch's random numbers. A pass may change more that
the next pass sees: buffers (BatchNorm's statistics, spectral norm's vectors, codebooks),
attributes, lists and caches among its arguments, the random states of Python and NumPy. Each call
of a block keeps what it changed as it was before; the recomputation works on copies of that, and
afterwards all is as it was found.

Not covered: what a pass changes within an attribute (a list, a generator of the block's own) and
parameters that it writes; ``purity`` finds programs that do.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Iterator, MutableMapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self
from weakref import WeakKeyDictionary

import numpy
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from autotune.inside.code.structure import structure_of

Call = Callable[..., Any]
Entries = MutableMapping[str, Any]
SMALL_BYTES = 64 * 1024  # kept without a look at whether it changed; a look would sync the device
ABSENT = object()


class Recomputing:
    """Runs blocks so that they forget what they computed; learns which of their buffers change.

    A buffer changed through ``.data`` or by BatchNorm's kernels does not show it, so the first pass
    of a block in each of its modes (training or not, of every module) compares all values.
    """

    def __init__(self) -> None:
        self._changing: WeakKeyDictionary[nn.Module, dict[tuple[bool, ...], set[str]]] = (
            WeakKeyDictionary()
        )

    def run(
        self, forward: Call, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call the block; it computes again, from the same state, when the gradients need it.

        All arguments are handed to torch by position: it guards only those against changes, and
        looks only among those for the device whose random numbers it keeps. What the block adds to
        lists and caches that it is given, it adds to copies when it computes again.
        """
        names, count = tuple(kwargs), len(args)
        given = (*args, *kwargs.values())
        first = [given]

        def call(block: nn.Module, *kept: Any) -> Any:
            values = first.pop() if first else tuple(map(structure_of, kept))
            return forward(block, *values[:count], **dict(zip(names, values[count:], strict=True)))

        mode = tuple(module.training for module in block.modules())
        changing = self._changing.setdefault(block, {})
        one_pass = _Pass(block, changing.get(mode))
        output = checkpoint(
            call,
            block,
            *map(structure_of, given),
            use_reentrant=False,
            context_fn=one_pass.contexts,
            early_stop=changing.get(mode) == set(),  # else what is kept of a buffer may change yet
        )
        changing.setdefault(mode, one_pass.changed)
        return output


class _Pass:
    """One call of a block: what it found, as far as it changed it.

    Attributes:
        changed: Names of the buffers that it was seen to change.
    """

    def __init__(self, block: nn.Module, changing: set[str] | None) -> None:
        self._block = block
        self._changing = changing  # None until a first pass has told
        self._found: list[tuple[Entries, dict[str, Any]]] = []
        self._copies: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._randoms: _Randoms | None = None
        self.changed: set[str] = set()

    def contexts(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """Return what torch enters around the first pass, and around each recomputation."""
        return self._first(), _Again(self._again)

    @contextmanager
    def _first(self) -> Iterator[None]:
        entries = _entries(self._block)
        buffers = [_Buffer.of(name, buffer) for name, buffer in self._block.named_buffers()]
        randoms = _Randoms.now()
        yield
        now = dict(self._block.named_buffers())
        looks = self._changing is None
        self.changed = {b.name for b in buffers if b.is_changed(now.get(b.name), looks=looks)}
        keep = self.changed | (self._changing or set())
        self._copies = {
            id(b.tensor): (b.tensor, b.copy)
            for b in buffers
            if b.name in keep or b.copy.nbytes <= SMALL_BYTES
        }
        self._found = [(place, _changes(place, held)) for place, held in entries]
        self._randoms = None if randoms == _Randoms.now() else randoms

    @contextmanager
    def _again(self) -> Iterator[None]:
        """Put in what the first pass found, and in the end what was there."""
        later = _entries(self._block)
        randoms = _Randoms.now() if self._randoms is not None else None
        self._put_in()
        try:
            yield
        finally:
            for place, held in later:
                place.clear()
                place.update(held)
            if randoms is not None:
                randoms.set()

    def _put_in(self) -> None:
        for place, found in self._found:
            for name, value in found.items():
                if value is ABSENT:
                    place.pop(name, None)
                else:
                    place[name] = value
        fresh = {key: copy.clone() for key, (_, copy) in self._copies.items()}
        for place, _ in self._found if fresh else ():
            for name, value in place.items():  # one buffer may have several names
                if id(value) in fresh:
                    place[name] = fresh[id(value)]
        if self._randoms is not None:
            self._randoms.set()


@dataclass(frozen=True)
class _Buffer:
    """A buffer before a pass."""

    name: str
    tensor: torch.Tensor
    copy: torch.Tensor
    version: int

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor) -> Self:
        return cls(name, tensor, tensor.detach().clone(), tensor._version)  # noqa: SLF001

    def is_changed(self, now: torch.Tensor | None, *, looks: bool) -> bool:
        """Tell whether it is another one now, by its values only if asked to look at them."""
        if now is not self.tensor or now._version != self.version:  # noqa: SLF001
            return True
        return looks and not torch.equal(now, self.copy)


@dataclass(frozen=True, eq=False)
class _Randoms:
    """The random states that torch's checkpoint knows nothing of."""

    python: tuple[Any, ...]
    numpy: dict[str, Any]

    @classmethod
    def now(cls) -> Self:
        return cls(random.getstate(), numpy.random.get_state(legacy=False))  # noqa: NPY002

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, _Randoms)
            and self.python == other.python
            and pickle.dumps(self.numpy) == pickle.dumps(other.numpy)
        )

    __hash__ = None  # type: ignore[assignment]

    def set(self) -> None:
        random.setstate(self.python)
        numpy.random.set_state(self.numpy)  # noqa: NPY002


class _Again(AbstractContextManager[None]):
    """A context to be entered for each recomputation: with retain_graph there are several."""

    def __init__(self, begin: Callable[[], AbstractContextManager[None]]) -> None:
        self._begin = begin
        self._entered: list[AbstractContextManager[None]] = []

    def __enter__(self) -> None:
        context = self._begin()
        context.__enter__()
        self._entered.append(context)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> bool | None:
        return self._entered.pop().__exit__(kind, error, trace)


def _entries(block: nn.Module) -> list[tuple[Entries, dict[str, Any]]]:
    """What the names of a block's modules stand for: its attributes and buffers, with copies."""
    places: list[Entries] = []
    for module in block.modules():
        places += [vars(module), module._buffers]  # noqa: SLF001
    return [(entries, dict(entries)) for entries in places]


def _changes(place: Entries, held: dict[str, Any]) -> dict[str, Any]:
    """Return what names stood for that stand for something else now, ABSENT for nothing."""
    was = {k: _without_history(v) for k, v in held.items() if place.get(k, ABSENT) is not v}
    return was | {k: ABSENT for k in place if k not in held}


def _without_history(value: Any) -> Any:
    """Return a tensor without what computed it: a recomputation needs values alone."""
    if isinstance(value, torch.Tensor) and value.grad_fn is not None:
        return value.detach().requires_grad_()
    return value
