"""Options of DistributedDataParallel, on autotune's DDP and on one that the program makes itself.

Source: PyTorch documentation, ``torch.nn.parallel.DistributedDataParallel`` and
``torch.nn.SyncBatchNorm``.
"""

from __future__ import annotations

from autotune.knobs.base import Here, Seams, StrategyOption, StrategyOptions
from autotune.knobs.strategies import ddp_refusal, in_place_refusal
from autotune.program.config import Config, KnobValue
from autotune.program.devices import strategy_in
from autotune.program.domain import Domain, NotOffered


class DdpOptions(StrategyOptions):
    """How DDP averages gradients: bucket-view, static-graph, small-buckets, large-buckets.

    bucket-view stores gradients inside DDP's communication buckets, which saves a copy and the
    memory of all gradients; ``detach_()`` fails on them. static-graph spares the search for unused
    parameters and fails for models that use different ones from step to step. Small buckets start
    early, so that communication overlaps more of the backward pass; large ones need fewer messages.
    Parts are joined by a plus sign.
    """

    name = "ddp_options"
    strategies = frozenset({"ddp", "zero1", "own"})
    parts = {  # noqa: RUF012
        "bucket-view": {"ddp_gradient_as_bucket_view": True},
        "static-graph": {"ddp_static_graph": True},
        "small-buckets": {"ddp_bucket_cap_mb": 5},  # torch's default is 25 MiB
        "large-buckets": {"ddp_bucket_cap_mb": 100},
    }
    choices = ("default", *parts)

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return each option alone, where DDP trains the program."""
        reason = ddp_refusal(here.hardware, here.profile)
        return NotOffered(reason) if reason else Domain(self.choices)

    def conflict(self, config: Config) -> str | None:
        """Refuse a static graph together with accumulation by autotune.

        A static graph must average gradients in the first backward pass, but accumulation averages
        them only in a group's last pass. A program that makes DDP itself accumulates itself, too.
        """
        is_static = "static-graph" in str(config[self.name])
        accumulates = int(config.get("accumulation_steps", 1)) > 1
        if is_static and accumulates and strategy_in(config, "ddp") != "own":
            return (
                "DDP with a static graph must average gradients in its first backward pass, but "
                "accumulation_steps delays that."
            )
        return None


class SyncBatchnorm(StrategyOption):
    """Compute BatchNorm statistics over the samples of all ranks instead of each rank's alone.

    On makes several ranks train like one device with the whole batch. It costs one communication
    per BatchNorm layer in each forward and backward pass, so it is slower.
    """

    name = "sync_batchnorm"
    changes_learning = True
    strategies = frozenset({"ddp", "zero1"})
    value_type = bool
    usual = False  # each rank's BatchNorm sees that rank's samples

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return both values for a model with BatchNorm layers on GPUs."""
        if not here.profile.model.batch_norm_layers:
            return NotOffered("the model has no BatchNorm")
        # PyTorch's SyncBatchNorm raises an error for tensors on the CPU.
        if here.profile.device != "cuda":
            return NotOffered("torch's SyncBatchNorm works on GPUs only")
        reason = in_place_refusal(here.hardware, here.profile)
        return NotOffered(reason) if reason else Domain((False, True))

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Pass the value to the strategy."""
        seams.set_strategy_options(sync_batchnorm=value)
