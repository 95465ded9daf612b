"""The strategies: the ways to train a model on several devices.

A new strategy is a class in this folder and an entry in ``STRATEGIES``.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from autotune.knobs.strategies.base import (
    DataParallel,
    Ddp,
    Own,
    RankStrategy,
    Single,
    Site,
    Strategy,
)
from autotune.knobs.strategies.fsdp import Fsdp
from autotune.knobs.strategies.model_split import ModelSplit
from autotune.knobs.strategies.zero1 import Zero1

__all__ = ["STRATEGIES", "RankStrategy", "Site", "Strategy"]

STRATEGIES: Mapping[str, Strategy] = MappingProxyType(
    {
        strategy.name: strategy
        for strategy in (Single(), DataParallel(), Ddp(), Fsdp(), Zero1(), ModelSplit(), Own())
    }
)
