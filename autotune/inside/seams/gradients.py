"""The norms of gradients at optimizer steps.

The batch probe compares norms under two batch sizes: gradients that grow with the batch come from a
loss that sums over samples.
"""

from __future__ import annotations

from weakref import WeakKeyDictionary

import torch
from torch.optim import Optimizer

from autotune.inside.hubs.step import StepListener


class GradientNorms(StepListener):
    """Records the norm of each optimizer's gradients at its steps.

    ``BatchProbe`` has it join for some steps and takes the norms. They are computed on the thread
    that steps, just before the step, and stay on the device until ``take()``, because reading them
    at each step would make the program wait for the device.
    """

    def __init__(self) -> None:
        self._norms: WeakKeyDictionary[Optimizer, list[torch.Tensor]] = WeakKeyDictionary()

    def take(self) -> dict[Optimizer, list[float]]:
        """Return the norms by optimizer, in the order of its steps, since this was last called.

        Waits for the device. Steps without any gradient are left out.
        """
        taken = {own: [float(norm) for norm in norms] for own, norms in self._norms.items()}
        self._norms.clear()
        return taken

    def before_step(self, optimizer: Optimizer) -> None:
        """Note the norm of the optimizer's gradients."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        gradients = [p.grad.detach() for p in parameters if p.grad is not None]
        norms = [torch.linalg.vector_norm(_dense(g).float()) for g in gradients]
        if norms:
            device = norms[0].device
            norm = torch.linalg.vector_norm(torch.stack([n.to(device) for n in norms]))
            self._norms.setdefault(optimizer, []).append(norm)


def _dense(gradient: torch.Tensor) -> torch.Tensor:
    return gradient.coalesce().values() if gradient.is_sparse else gradient
