"""Options of the strategy ``fsdp``.

Source: PyTorch documentation, ``torch.distributed.fsdp`` (``fully_shard``,
``MixedPrecisionPolicy``, ``CPUOffloadPolicy``).
"""

from __future__ import annotations

from autotune.knobs.base import Here, StrategyOptions
from autotune.knobs.strategies import in_place_refusal
from autotune.program.domain import Domain, NotOffered


class FsdpOptions(StrategyOptions):
    """How FSDP gathers and stores weights: whole, keep-gathered, bf16, cpu-offload.

    By default it gathers one repeated block while another computes, and drops gathered weights
    after the forward pass. whole gathers the model at once: fewer messages, but memory for all
    weights. keep-gathered saves the second gathering of a step, also at the cost of memory; between
    forward and backward the model then shows parameters that have no gradients. bf16 gathers and
    computes in bf16, while stored weights and averaging stay fp32. cpu-offload keeps the shards in
    host memory and steps there, for models that do not fit otherwise. Parts are joined by a plus
    sign.
    """

    name = "fsdp_options"
    changes_learning = True  # bf16 does
    strategies = frozenset({"fsdp"})
    parts = {  # noqa: RUF012
        "whole": {"fsdp_shard": "whole"},
        "keep-gathered": {"fsdp_reshard_after_forward": False},
        "bf16": {"fsdp_mixed_precision": "bf16"},
        "cpu-offload": {"fsdp_cpu_offload": True},
    }
    choices = ("default", *parts)

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return the options that can act here, each alone."""
        if reason := in_place_refusal(here.hardware, here.profile):
            return NotOffered(reason)
        on_cuda = here.profile.device == "cuda"
        has_bf16 = here.hardware.supports_bf16_gpu if on_cuda else here.hardware.supports_bf16_cpu
        can = {
            "whole": here.profile.model.repeated_blocks >= 2,
            "bf16": has_bf16,
            "cpu-offload": on_cuda,
        }
        return Domain(tuple(choice for choice in self.choices if can.get(choice, True)))
