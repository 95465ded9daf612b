"""The seam at gradients as optimizers take them: how long they are, while someone asks."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle


class GradientsSeam:
    """Notes the norm of each optimizer's gradients at its steps, without waiting for the device."""

    def __init__(self) -> None:
        self._norms: WeakKeyDictionary[Optimizer, list[torch.Tensor]] = WeakKeyDictionary()
        self._hook: RemovableHandle | None = None

    def install(self) -> None:
        """Begin to note."""
        self._hook = register_optimizer_step_pre_hook(self._note)

    def remove(self) -> None:
        """Note no more."""
        if self._hook is not None:
            self._hook.remove()
            self._hook = None
        self._norms.clear()

    def take(self) -> dict[Optimizer, list[float]]:
        """Return what was noted since this was last called."""
        taken = {own: [float(norm) for norm in norms] for own, norms in self._norms.items()}
        self._norms.clear()
        return taken

    def _note(self, optimizer: Optimizer, *_: Any) -> None:
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        gradients = [p.grad.detach() for p in parameters if p.grad is not None]
        norms = [torch.linalg.vector_norm(_dense(g).float()) for g in gradients]
        if norms:
            device = norms[0].device
            norm = torch.linalg.vector_norm(torch.stack([n.to(device) for n in norms]))
            self._norms.setdefault(optimizer, []).append(norm)


def _dense(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.coalesce().values() if gradient.is_sparse else gradient
