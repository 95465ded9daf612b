"""How the learning rate follows the global batch size.

Covered: the published scaling rule for each optimizer family, and losses that sum over samples. Not
covered: warm-up lengths, weight decay and schedules.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import assert_never

from autotune.program.config import KnobValue
from autotune.program.domain import ranks_in

PARTS = ("batch_size", "accumulation_steps", "devices")  # knobs whose product is a step's batch


class LrRule(StrEnum):
    """How a learning rate changes when the global batch size changes.

    Attributes:
        LINEAR: Multiply it by the batch growth.
        SQRT: Multiply it by the square root of the batch growth.
        NONE: Leave it alone.
        AUTO: Apply the rule of each optimizer's family.
    """

    LINEAR = "linear"
    SQRT = "sqrt"
    NONE = "none"
    AUTO = "auto"


RULE_BY_FAMILY = {
    # Goyal et al. 2017, "Accurate, Large Minibatch SGD", section 2.1
    "SGD": LrRule.LINEAR,
    "ASGD": LrRule.LINEAR,
    # You et al. 2017, "Large Batch Training of Convolutional Networks", section 2
    "LARS": LrRule.LINEAR,
    # Malladi et al. 2022, "On the SDEs and Scaling Rules for Adaptive Gradient Algorithms"
    "Adam": LrRule.SQRT,
    "AdamW": LrRule.SQRT,
    "SparseAdam": LrRule.SQRT,
    "Adamax": LrRule.SQRT,
    "NAdam": LrRule.SQRT,
    "RAdam": LrRule.SQRT,
    "RMSprop": LrRule.SQRT,
    "Adagrad": LrRule.SQRT,
    # You et al. 2020, "Large Batch Optimization for Deep Learning", section 4
    "LAMB": LrRule.SQRT,
    "Lamb": LrRule.SQRT,
    # Liu et al. 2025, "Muon is Scalable for LLM Training", section 2.2: its rates are AdamW's
    "Muon": LrRule.SQRT,
    "Adadelta": LrRule.NONE,
}


def rule_for(families: Iterable[str]) -> LrRule:
    """Return the rule for an optimizer, given the names of its class and its base classes.

    The first known name decides. An unknown optimizer keeps its learning rate.
    """
    for family in families:
        if family in RULE_BY_FAMILY:
            return RULE_BY_FAMILY[family]
    return LrRule.NONE


def batch_parts(config: Mapping[str, KnobValue]) -> dict[str, int]:
    """Return what the knobs of PARTS in a config multiply the global batch size by.

    That of ``devices`` is the number of ranks.
    """
    parts = {part: config[part] for part in PARTS if config.get(part) is not None}
    ranks = {"devices": ranks_in(config)} if "devices" in parts else {}
    return {part: int(value) for part, value in (parts | ranks).items()}


def global_batch(config: Mapping[str, KnobValue]) -> int | None:
    """Return the samples of one optimizer step, or None if the config has no batch size."""
    parts = batch_parts(config)
    return math.prod(parts.values()) if "batch_size" in parts else None


def batch_growth(
    before: Mapping[str, KnobValue], after: Mapping[str, KnobValue], *, counts_ranks: bool = True
) -> float:
    """Return the ratio of the two configs' global batch sizes (after / before).

    Args:
        counts_ranks: Whether more ranks make the global batch larger. Pass False for a program that
            distributes itself, because it may split a fixed batch among its ranks. The ranks are
            then left out of the ratio, unless the whole product is the same in both configs.
    """
    ours, theirs = batch_parts(before), batch_parts(after)
    growth = math.prod(theirs.values()) / math.prod(ours.values())
    if counts_ranks or growth == 1.0 or not ours.get("devices"):
        return growth
    return growth * ours["devices"] / theirs["devices"]


def lr_factor(rule: LrRule, growth: float) -> float:
    """Return the factor for a learning rate when the global batch grows by *growth*.

    Args:
        rule: The rule of one optimizer. AUTO must be resolved by ``rule_for`` first; here it gives
            1.
    """
    match rule:
        case LrRule.LINEAR:
            return growth
        case LrRule.SQRT:
            return math.sqrt(growth)
        case LrRule.NONE | LrRule.AUTO:
            return 1.0
        case _:
            assert_never(rule)


def optimizer_factor(rule: LrRule, families: Iterable[str], growth: float) -> float:
    """Return the factor for the learning rate of one optimizer.

    Args:
        rule: The chosen rule, or AUTO for that of the optimizer's family.
    """
    return lr_factor(rule_for(families) if rule is LrRule.AUTO else rule, growth)
