"""The knob ``ddp_gradient_as_bucket_view``: where DDP keeps gradients.

It acts on autotune's DDP and on one that the program makes itself.

Source: PyTorch documentation, ``torch.nn.parallel.DistributedDataParallel``
(``gradient_as_bucket_view``).
"""

from __future__ import annotations

from autotune.knobs.base import Here, StrategyOption
from autotune.knobs.strategies import ddp_refusal
from autotune.program.config import KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.profile import Profile


class DdpGradientAsBucketView(StrategyOption):
    """Store gradients inside DDP's communication buckets, which saves a copy and memory.

    The memory saved is that of all gradients. Gradients are then views, on which ``detach_()``
    fails.
    """

    name = "ddp_gradient_as_bucket_view"
    strategies = frozenset({"ddp", "zero1", "own"})
    value_type = bool

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return both values where DDP trains the program."""
        if reason := ddp_refusal(here.hardware, here.profile):
            return NotOffered(reason)
        return Domain((False, True))

    def current(self, profile: Profile) -> KnobValue:
        """Return False, PyTorch's default; what the program itself passes to DDP is not known."""
        return False
