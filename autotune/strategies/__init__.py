"""The strategies: a family of one file per way to train on several devices."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from autotune.strategies.base import (
    Site,
    Strategy,
    ddp_refusal,
    devices_of,
    in_place_refusal,
    starts_them_itself,
)
from autotune.strategies.data_parallel import DataParallel
from autotune.strategies.ddp import Ddp
from autotune.strategies.fsdp import Fsdp
from autotune.strategies.model_split import ModelSplit
from autotune.strategies.own import Own
from autotune.strategies.single import Single
from autotune.strategies.zero1 import Zero1

__all__ = [
    "STRATEGIES",
    "Site",
    "Strategy",
    "ddp_refusal",
    "devices_of",
    "in_place_refusal",
    "starts_them_itself",
]

STRATEGIES: Mapping[str, Strategy] = MappingProxyType(
    {
        strategy.name: strategy
        for strategy in (Single(), DataParallel(), Ddp(), Fsdp(), Zero1(), ModelSplit(), Own())
    }
)
