"""By which API a program itself distributes its training."""

from __future__ import annotations

import sys
from collections.abc import Collection

from torch import distributed, nn

from autotune.knobs.strategies.base import ACCELERATE, DDP, FABRIC, LIGHTNING, TRANSFORMERS

TRAINERS = {"lightning": LIGHTNING, "transformers": TRANSFORMERS}
WRAPPERS = {  # the outermost first: Fabric's wrapper contains that of DDP or FSDP
    "_FabricModule": FABRIC,
    "DistributedDataParallel": DDP,
    "FullyShardedDataParallel": "FullyShardedDataParallel",
    "DataParallel": "nn.DataParallel",
}


def distributed_by(roots: Collection[nn.Module], trainer: str) -> str:
    """Return the API with which a program distributes its training; empty if it does not.

    A program that only prepares for several devices, for example through Accelerate, counts too: it
    would use them if it were launched with them.

    Args:
        roots: The program's outermost modules, which autotune has not wrapped.
        trainer: The library whose trainer runs the loop; empty if the program does.
    """
    if trainer:
        return TRAINERS[trainer]
    state = sys.modules.get("accelerate.state")
    if state is not None and state.AcceleratorState._shared_state:  # noqa: SLF001
        return ACCELERATE
    names = {type(m).__name__ for root in roots for m in root.modules()}
    if found := [name for name in WRAPPERS if name in names]:
        return WRAPPERS[found[0]]
    is_open = distributed.is_available() and distributed.is_initialized()
    return "torch.distributed" if is_open else ""
