"""Domain: the values one knob may take here, or the reason why it is not offered."""

from __future__ import annotations

from dataclasses import dataclass

from autotune.program.config import KnobValue


@dataclass(frozen=True)
class Domain:
    """The candidate values of a knob for one program on one machine, in ascending order of effect.

    Attributes:
        alone: Why there is no second value, as a clause; empty where nothing more can be said.

    Raises:
        ValueError: when there is no value or a value stands twice.
    """

    values: tuple[KnobValue, ...]
    alone: str = ""

    def __post_init__(self) -> None:
        if not self.values:
            raise ValueError("a domain needs at least one value")
        if len({(type(v), v) for v in self.values}) != len(self.values):
            raise ValueError(f"a domain names each value once, got {self.values}")

    def including(self, value: KnobValue) -> Domain:
        """Return this domain with *value* in it; numbers stay sorted, other values go first."""
        if value in self.values:
            return self
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            numbers = [v for v in self.values if isinstance(v, (int, float))]
            return Domain(tuple(sorted([*numbers, value])))
        return Domain((value, *self.values))


@dataclass(frozen=True)
class NotOffered:
    """A knob that is not to be tried here, with the reason as a clause (no capital, no full stop).

    Attributes:
        by_name: What it offers nevertheless to a user who names the knob; None where it cannot act.
    """

    reason: str
    by_name: Domain | None = None
