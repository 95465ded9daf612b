"""What a value of the knob ``devices`` says: ``single``, ``ddp-2``, ``model_split``."""

from __future__ import annotations

from collections.abc import Mapping

from autotune.program.config import KnobValue


def parts_of(value: KnobValue) -> tuple[str, int]:
    """Return the strategy and the number of ranks; one that starts no ranks has 1."""
    strategy, _, ranks = str(value).rpartition("-")
    return (strategy, int(ranks)) if strategy else (ranks, 1)


def strategy_in(config: Mapping[str, KnobValue], default: str = "") -> str:
    """Return the strategy of a config; the default if the config does not say it."""
    return parts_of(config["devices"])[0] if "devices" in config else default


def ranks_in(config: Mapping[str, KnobValue]) -> int:
    """Return the number of ranks of a config, 1 if the config does not say it."""
    return parts_of(config["devices"])[1] if "devices" in config else 1
