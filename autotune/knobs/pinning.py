"""The knob ``pinning``: page-locked batches, and copies from them that do not block Python.

Sources: PyTorch documentation, ``torch.utils.data`` ("Memory Pinning"), ``torch.Tensor.to``
(``non_blocking``) and "CUDA semantics" ("Use pinned memory buffers").
"""

from __future__ import annotations

from autotune.knobs.base import Here, Knob, Seams
from autotune.program.config import KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.flags import Flag
from autotune.program.profile import Profile


class Pinning(Knob):
    """Load batches into page-locked memory, and copy them to the GPU while Python goes on.

    It helps where the copy to the GPU takes a noticeable part of a step. It costs an extra copy in
    host memory, with workers by a thread of the training process. Only batches that a DataLoader
    pinned are copied without blocking: PyTorch does not reuse their memory before the copy ends,
    whereas the program might refill a buffer that it pinned itself.
    """

    name = "pinning"
    value_type = str
    choices = ("off", "blocking", "non-blocking")
    flag_names = ("pin_memory", "pin_mem", "dataloader_pin_memory")
    flag_states = ("off", "non-blocking")

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return off and non-blocking where batches are copied to a device.

        Pinning can also slow a program down, so a program that already pins is tried without it.
        """
        if here.profile.device == "cpu":
            return NotOffered("the model is on the CPU: nothing is copied to a device")
        return here.profile.without_training_loader or Domain(("off", "non-blocking"))

    def current(self, profile: Profile) -> KnobValue:
        """Return whether the (first) training loader pins, and how the program copies then."""
        if not profile.loaders[0].pin_memory:
            return "off"
        return "non-blocking" if profile.loop.copies_without_blocking else "blocking"

    def flag_domain(self, flag: Flag, here: Here) -> Domain | None:
        """Return off and non-blocking for an on/off flag, or None for a model on the CPU."""
        return None if here.profile.device == "cpu" else super().flag_domain(flag, here)

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Rebuild the training loader, and change how batches that it pinned are copied."""
        seams.set_loader_options(pin_memory=value != "off")
        self.apply_side_effects(value, seams)

    def apply_side_effects(self, value: KnobValue, seams: Seams) -> None:
        """Change how ``Tensor.to`` and ``Tensor.cuda`` copy tensors that a DataLoader pinned."""
        seams.set_non_blocking(enabled=value == "non-blocking")
