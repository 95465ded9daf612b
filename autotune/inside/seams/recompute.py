"""Activation checkpointing that recomputes a block from the state in which it first ran.

torch's checkpoint keeps a block's inputs and torch's random state. A pass may change more state
that the next pass reads: buffers (BatchNorm's statistics, spectral norm's vectors, codebooks),
attributes, lists and caches among its arguments, the random states of Python and NumPy. So each
call of a block saves the old values of what it changed. The recomputation works on copies of these
values, and afterwards the present state is restored.

Not covered: changes within an attribute (a list, the block's own generator), and parameters that a
pass writes to. They show in what is trained.
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
# A smaller buffer is always kept, changed or not: to compare its values would sync the device.
SMALL_BYTES = 64 * 1024
ABSENT = object()


class Recomputing:
    """Runs blocks without keeping their activations, and learns which of their buffers change.

    The checkpoint seam calls ``run()`` for each chosen block, on the thread that calls the model.
    The version counter does not show changes through ``.data`` or by BatchNorm's kernels. So the
    first pass of a block compares the values of all buffers, once for each combination of its
    modules' training modes.
    """

    def __init__(self) -> None:
        self._changing: WeakKeyDictionary[nn.Module, dict[tuple[bool, ...], set[str]]] = (
            WeakKeyDictionary()
        )

    def run(
        self, forward: Call, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call the block; it is computed again from the same state when gradients need it.

        All arguments are passed to torch's checkpoint by position, because it protects only
        positional arguments against later changes and searches only these for the device whose
        random state it keeps. In the recomputation the block gets copies of its lists and caches,
        so nothing is added to them twice.

        Args:
            forward: The ``forward`` of the block's class.
            block: The block.
            args: Its positional arguments.
            kwargs: Its keyword arguments.

        Returns:
            The block's output.
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
            # A recomputation may end early only if the block changes no buffer; otherwise a tensor
            # that is kept of a buffer could still be changed by the part that is left out.
            early_stop=changing.get(mode) == set(),
        )
        changing.setdefault(mode, one_pass.changed)
        return output


class _Pass:
    """The state that one call of a block found, as far as the call changed it.

    Attributes:
        changed: Names of the buffers that the call was seen to change.
    """

    def __init__(self, block: nn.Module, changing: set[str] | None) -> None:
        self._block = block
        self._changing = changing  # None in the first pass, which compares all values
        self._found: list[tuple[Entries, dict[str, Any]]] = []
        self._copies: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._randoms: _Randoms | None = None
        self.changed: set[str] = set()

    def contexts(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """Return two contexts: torch enters one for the first pass, the other to recompute."""
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
        """Set the state that the first pass found, and restore the present one afterwards."""
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
            for name, value in place.items():  # one buffer may be registered under several names
                if id(value) in fresh:
                    place[name] = fresh[id(value)]
        if self._randoms is not None:
            self._randoms.set()


@dataclass(frozen=True)
class _Buffer:
    """A buffer before a pass.

    Attributes:
        name: Its qualified name in the block.
        tensor: The tensor that was registered.
        copy: A copy of its values.
        version: autograd's version counter of the tensor, which counts changes in place.
    """

    name: str
    tensor: torch.Tensor
    copy: torch.Tensor
    version: int

    @classmethod
    def of(cls, name: str, tensor: torch.Tensor) -> Self:
        return cls(name, tensor, tensor.detach().clone(), tensor._version)  # noqa: SLF001

    def is_changed(self, now: torch.Tensor | None, *, looks: bool) -> bool:
        """Tell whether the buffer was replaced or changed.

        Args:
            now: The tensor that is registered now; None if there is none.
            looks: Also compare values, which syncs the device. Needed where a change does not show
                in the version counter.
        """
        if now is not self.tensor or now._version != self.version:  # noqa: SLF001
            return True
        return looks and not torch.equal(now, self.copy)


@dataclass(frozen=True, eq=False)
class _Randoms:
    """The random states of Python and NumPy, which torch's checkpoint does not keep."""

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
    """A context that may be entered several times, once for each recomputation.

    torch uses one object for all of them, and ``retain_graph=True`` allows several. A context made
    by ``@contextmanager`` can be entered only once.
    """

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
    """Return the dictionaries of attributes and buffers of a block's modules, each with a copy."""
    places: list[Entries] = []
    for module in block.modules():
        places += [vars(module), module._buffers]  # noqa: SLF001
    return [(entries, dict(entries)) for entries in places]


def _changes(place: Entries, held: dict[str, Any]) -> dict[str, Any]:
    """Return the old values of the entries that changed.

    Args:
        place: The dictionary as it is now.
        held: Its copy from before the pass.

    Returns:
        The old value by name; ABSENT for a name that was added since.
    """
    was = {k: _without_history(v) for k, v in held.items() if place.get(k, ABSENT) is not v}
    return was | {k: ABSENT for k in place if k not in held}


def _without_history(value: Any) -> Any:
    """Return a tensor detached from its graph, because a recomputation needs only the values."""
    if isinstance(value, torch.Tensor) and value.grad_fn is not None:
        return value.detach().requires_grad_()
    return value
