"""Choosable: the space that a chooser needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from autotune.program.config import Config, KnobValue
from autotune.program.domain import Domain


class Choosable(Protocol):
    """What may be chosen; ``ResolvedSpace`` is the space of a search."""

    @property
    def baseline(self) -> Config:
        """The config of the unchanged program."""
        ...

    @property
    def domains(self) -> Mapping[str, Domain]:
        """The values of each knob that may be chosen."""
        ...

    @property
    def fixed(self) -> Mapping[str, KnobValue]:
        """Values that every config but the baseline has."""
        ...

    @property
    def asked(self) -> frozenset[str]:
        """Knobs that are tried whatever they can gain."""
        ...

    @property
    def requested(self) -> frozenset[str]:
        """Knobs that the user named."""
        ...

    def canonical(self, config: Config) -> Config:
        """Return the config that stands for all that act like this one."""
        ...

    def conflicts(self, config: Config) -> Sequence[str]:
        """Return why a config cannot be measured; empty if it can."""
        ...

    def defers(self, config: Config) -> bool:
        """Return whether a config may not be recommended, so that it is left for the end."""
        ...

    def needs_restart(self, here: Config, there: Config) -> bool:
        """Return whether a change from one config to the other needs a fresh process."""
        ...
