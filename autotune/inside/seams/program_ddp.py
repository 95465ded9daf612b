"""The seam at DistributedDataParallel: passes options to the DDP that the program itself builds."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch.nn.parallel import DistributedDataParallel

from autotune.inside.hubs.patches import Patches, Seam
from autotune.program.config import KnobValue

OPTIONS = ("bucket_cap_mb", "gradient_as_bucket_view", "static_graph")


class ProgramDdpSeam(Seam):
    """Passes the values of the ``ddp_…`` knobs to each DDP wrapper of the program or its trainer.

    ``DistributionSeam`` installs it before the program starts; the program runs it when it wraps a
    model.
    """

    def __init__(self) -> None:
        self._patches = Patches()

    def install(self, knobs: Mapping[str, KnobValue]) -> None:
        """Begin to pass options.

        Args:
            knobs: Values of knobs; those that are not DDP's are left out.
        """
        original = DistributedDataParallel.__init__
        options = {name: knobs[f"ddp_{name}"] for name in OPTIONS if f"ddp_{name}" in knobs}

        def init(wrapper: Any, *args: Any, **kwargs: Any) -> None:
            original(wrapper, *args, **{**kwargs, **options})

        self._patches.replace(DistributedDataParallel, "__init__", init)
