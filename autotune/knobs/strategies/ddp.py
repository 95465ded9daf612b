"""The strategy ``ddp``: ``torch.nn.parallel.DistributedDataParallel``.

It suits models that fit on each device; ``zero1`` and ``fsdp`` need less memory per rank.
"""

from __future__ import annotations

from autotune.knobs.strategies.base import RankStrategy


class Ddp(RankStrategy):
    """DistributedDataParallel: each rank trains a copy of the model on its share of each batch.

    Gradients are averaged over the ranks during the backward pass. Every rank needs memory for the
    whole model, its gradients and its optimizer state.
    """

    name = "ddp"
