"""The hub of backward passes, at ``torch.autograd.backward``, which ``Tensor.backward()`` calls."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from autotune.inside.hubs.hub import Hub


@dataclass(slots=True)
class BackwardPass:
    """A backward pass that the program begins; listeners may change what it begins with.

    Attributes:
        tensors: What is differentiated, as the program gave it; an iterator has become a tuple.
        gradients: The program's ``grad_tensors``; None stands for 1.
        options: Further arguments of ``torch.autograd.backward``.
    """

    tensors: Any
    gradients: Any
    options: dict[str, Any]

    @property
    def losses(self) -> Sequence[Any]:
        """The tensors as a sequence."""
        is_one = isinstance(self.tensors, (torch.Tensor, torch.autograd.graph.GradientEdge))
        return (self.tensors,) if is_one else tuple(self.tensors)


class BackwardListener:
    """Acts on backward passes; a method that a class does not override costs nothing.

    The methods run on the thread that computes gradients. Passes within a pass, such as torch's
    reentrant checkpoint makes, are a part of it: no method is called for them.
    """

    def before_backward(self, call: BackwardPass) -> None:
        """A pass is about to begin."""

    def after_backward(self, call: BackwardPass) -> None:
        """A pass has been made; called for the innermost listener first."""

    def backward_ended(self, call: BackwardPass) -> None:
        """A pass has been made or has failed; called last, for the innermost listener first."""


class BackwardHub(Hub[BackwardListener]):
    """Calls its listeners around each backward pass of the program."""

    listens = BackwardListener
    inner_first = ("after_backward", "backward_ended")

    def __init__(self) -> None:
        # For all threads: autograd may run an inner pass on another thread
        self._is_in_pass = False
        super().__init__()

    def _patch(self) -> None:
        if not self._patches.is_used:
            self._patches.wrap(torch.autograd, "backward", self._backward)

    def _backward(
        self,
        original: Callable[..., None],
        tensors: Any,
        grad_tensors: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> None:
        if args:
            kwargs |= dict(zip(MORE_ARGUMENTS, args, strict=False))
        if isinstance(tensors, Iterator):
            tensors = tuple(tensors)
        call = BackwardPass(tensors, grad_tensors, kwargs)
        if self._is_in_pass:
            original(call.tensors, call.gradients, **call.options)
            return
        self._is_in_pass = True
        try:
            for tell in self.told["before_backward"]:
                tell(call)
            original(call.tensors, call.gradients, **call.options)
            for tell in self.told["after_backward"]:
                tell(call)
        finally:
            self._is_in_pass = False
            for tell in self.told["backward_ended"]:
                tell(call)


MORE_ARGUMENTS = ("retain_graph", "create_graph", "grad_variables", "inputs")
