"""Domain: the values one knob may take here, or the reason why the knob is not offered."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autotune.program.config import KnobValue


@dataclass(frozen=True)
class Domain:
    """The candidate values of one knob for one program on one machine.

    Attributes:
        values: At least one value, without duplicates, in ascending order of effect.
        alone: Why there is only one value, as a clause; empty if there is nothing to explain.

    Raises:
        ValueError: There is no value, or a value occurs twice.
    """

    values: tuple[KnobValue, ...]
    alone: str = ""

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError("a domain needs at least one value")
        # The type is compared too, because True == 1 and 1 == 1.0 in Python.
        if len({(type(v), v) for v in self.values}) != len(self.values):
            raise ValueError(f"a domain names each value once, got {self.values}")

    def including(self, value: KnobValue) -> Domain:
        """Return this domain with *value* in it; numbers stay sorted, other values are put first.

        The baseline's value is added this way, so that a search can always return to it.
        """
        if value in self.values:
            return self
        # bool is a subclass of int, but on and off are not numbers to sort.
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            numbers = [v for v in self.values if isinstance(v, (int, float))]
            return Domain(tuple(sorted([*numbers, value])))
        return Domain((value, *self.values))


@dataclass(frozen=True)
class NotOffered:
    """A knob that is not searched here, and the reason.

    Attributes:
        reason: A clause without a capital letter or a full stop, because messages embed it.
        by_name: The domain offered if the user names the knob in ``--tune`` or ``--set``; None if
            the knob cannot act at all.
        is_unreached: Whether autotune only lacks a way to set the knob, so that a flag of the
            program that means the same may be used. Otherwise the knob would change what is
            trained, whichever way it is set.
    """

    reason: str
    by_name: Domain | None = None
    is_unreached: bool = False


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
