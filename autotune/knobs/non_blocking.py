"""The knob ``non_blocking``: whether copies of pinned batches block the Python thread.

Source: PyTorch documentation, ``torch.Tensor.to`` (``non_blocking``) and "CUDA semantics" ("Use
pinned memory buffers").
"""

from __future__ import annotations

from autotune.knobs.base import Here, Knob, Seams
from autotune.program.config import Config, KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.profile import Profile


class NonBlocking(Knob):
    """Copy pinned batches to the GPU without making the Python thread wait.

    It helps where Python has work to do while the copy runs, such as launching kernels. Only
    batches that a DataLoader pinned are copied this way: PyTorch does not reuse their memory before
    the copy ends, whereas the program might refill a buffer that it pinned itself.
    """

    name = "non_blocking"
    value_type = bool

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return both values where the program makes blocking copies to a device.

        A model on the CPU needs no copies, and a program that already requests non-blocking copies
        needs no change.
        """
        if here.profile.device == "cpu":
            return NotOffered("the model is on the CPU: nothing is copied to a device")
        if here.profile.loop.copies_without_blocking:
            return NotOffered("the program asks for it itself")
        return here.profile.without_training_loader or Domain((False, True))

    def current(self, profile: Profile) -> KnobValue:
        """Return whether the program already requests non-blocking copies."""
        return profile.loop.copies_without_blocking

    def is_active(self, config: Config) -> bool:
        """Return False without pinned memory: a copy from pageable memory makes the thread wait."""
        return bool(config.get("pin_memory", True))

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Change how ``Tensor.to`` and ``Tensor.cuda`` copy tensors that a DataLoader pinned."""
        seams.set_non_blocking(enabled=bool(value))
