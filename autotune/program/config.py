"""Config: an immutable mapping from knob to value; what a trial measures and best.yaml stores."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

KnobValue = bool | int | float | str


@dataclass(frozen=True)
class Config(Mapping[str, KnobValue]):
    """An immutable mapping from knob name to value, hashable and compared by value.

    A program whose function takes a parameter named ``config`` receives a Config and reads it with
    ``config["batch_size"]`` or ``config.get("batch_size", 32)``. Knobs that are read this way are
    left to the program.
    """

    values_by_knob: Mapping[str, KnobValue] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # The caller's mapping is copied: a Config is a dictionary key, so it must never change.
        object.__setattr__(self, "values_by_knob", dict(self.values_by_knob))

    def __getitem__(self, knob: str) -> KnobValue:
        return self.values_by_knob[knob]

    def __iter__(self) -> Iterator[str]:
        return iter(self.values_by_knob)

    def __len__(self) -> int:
        return len(self.values_by_knob)

    def __hash__(self) -> int:
        # Equal configs may hold their knobs in another order.
        return hash(frozenset(self.values_by_knob.items()))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Config):
            return NotImplemented
        return self.values_by_knob == other.values_by_knob

    def __str__(self) -> str:
        return " ".join(f"{knob}={value}" for knob, value in self.items())

    def replace(self, **changes: KnobValue) -> Config:
        """Return a copy with the named knobs changed."""
        return Config({**self.values_by_knob, **changes})

    def changes_from(self, other: Config) -> dict[str, KnobValue]:
        """Return this config's values of the knobs that differ in *other* or are missing there."""
        return {
            knob: value for knob, value in self.items() if knob not in other or other[knob] != value
        }
