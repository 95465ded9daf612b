"""How the learning rate follows the global batch."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import assert_never

from autotune.program.config import KnobValue

PARTS = ("batch_size", "accumulation_steps", "world_size")  # of the samples of a step


class LrRule(StrEnum):
    """Rule by which the learning rate follows the global batch."""

    LINEAR = "linear"
    SQRT = "sqrt"
    NONE = "none"
    AUTO = "auto"  # each optimizer by its own kind


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
# Their step is as long as their gradient: one that sums over samples makes it longer by itself.
STEPS_BY_SIZE = frozenset({"SGD", "ASGD"})


def rule_for(families: Iterable[str]) -> LrRule:
    """Return the rule for an optimizer, given its class name and those of its base classes.

    The first known name decides; an unknown optimizer keeps its learning rate.
    """
    for family in families:
        if family in RULE_BY_FAMILY:
            return RULE_BY_FAMILY[family]
    return LrRule.NONE


def batch_parts(config: Mapping[str, KnobValue]) -> dict[str, int]:
    """Return what the samples of a step are the product of, as far as knobs have a say in it."""
    return {part: int(config[part]) for part in PARTS if config.get(part) is not None}


def global_batch(config: Mapping[str, KnobValue]) -> int | None:
    """Return the samples that make one optimizer step, None where the batch is not known."""
    parts = batch_parts(config)
    return math.prod(parts.values()) if "batch_size" in parts else None


def batch_growth(
    before: Mapping[str, KnobValue], after: Mapping[str, KnobValue], *, counts_ranks: bool = True
) -> float:
    """Return how many times the samples of a step one config has of another's.

    Args:
        before: The config to compare with.
        after: The config.
        counts_ranks: More ranks are a larger batch. What they mean to a program that distributes
            itself is its own affair, unless a step has as many samples as before.
    """
    ours, theirs = batch_parts(before), batch_parts(after)
    growth = math.prod(theirs.values()) / math.prod(ours.values())
    if counts_ranks or growth == 1.0 or not ours.get("world_size"):
        return growth
    return growth * ours["world_size"] / theirs["world_size"]


def lr_factor(rule: LrRule, growth: float) -> float:
    """Return the factor on a learning rate when a step has *growth* times the samples.

    Args:
        rule: One of an optimizer: not AUTO, which leaves it to the optimizer's kind.
        growth: Samples of a step, times those before.
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


def optimizer_factor(
    rule: LrRule, families: Iterable[str], growth: float, *, sums: bool = False
) -> float:
    """Return the factor on the learning rate of an optimizer.

    Args:
        rule: The one that was chosen, or AUTO.
        families: Names of the optimizer's class and of its base classes.
        growth: Samples of a step, times those before.
        sums: Its gradients grow with the batch: the loss sums over samples.
    """
    families = tuple(families)
    factor = lr_factor(rule_for(families) if rule is LrRule.AUTO else rule, growth)
    grows_by_itself = sums and rule is not LrRule.NONE and not STEPS_BY_SIZE.isdisjoint(families)
    return factor / growth if grows_by_itself else factor
