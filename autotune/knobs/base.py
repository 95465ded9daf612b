"""Knob: one thing that autotune may set in a program; the interface of the family."""

from __future__ import annotations

from abc import ABC, abstractmethod
from enum import StrEnum
from typing import TYPE_CHECKING, ClassVar

from autotune.config import Config, KnobValue
from autotune.domain import Domain, NotOffered
from autotune.flags import Flag, as_text
from autotune.hardware import Hardware
from autotune.profile import Profile
from autotune.program import LaunchPlan

if TYPE_CHECKING:
    from autotune.inside.seams import Seams


class Scope(StrEnum):
    """When a knob can change."""

    LIVE = "live"
    RESTART = "restart"


class Knob(ABC):
    """One knob, one file. The first line of its docstring is what users read about it.

    Members override only what they mean. A knob that depends on another looks it up in ``config``
    by name: members never import each other.

    Attributes:
        name: Its name in configs, files and on the command line.
        scope: Whether it can change while the program runs.
        value_type: Type of its values.
        choices: The only values that exist, for a knob of names.
        minimum: The least value, for a knob of numbers.
        flag_names: What programs call a flag that means this knob, as Python would write it.
    """

    name: str
    scope: ClassVar[Scope] = Scope.LIVE
    value_type: ClassVar[type[bool] | type[int] | type[str]]
    choices: ClassVar[tuple[str, ...]] = ()
    minimum: ClassVar[int] = 0
    flag_names: ClassVar[tuple[str, ...]] = ()

    @property
    def summary(self) -> str:
        """What it does, in one line."""
        return (type(self).__doc__ or "").strip().splitlines()[0]

    @abstractmethod
    def domain(self, hardware: Hardware, profile: Profile) -> Domain | NotOffered:
        """Return the values worth trying here, or why there are none."""

    @abstractmethod
    def current(self, profile: Profile) -> KnobValue:
        """Return what the program does today: the knob's value in the baseline."""

    def refusal(
        self,
        value: KnobValue,  # noqa: ARG002
        hardware: Hardware,  # noqa: ARG002
        profile: Profile,  # noqa: ARG002
    ) -> str | None:
        """Return why a value that the user names, beyond those offered, cannot be had here."""
        return None

    def is_active(self, config: Config) -> bool:  # noqa: ARG002
        """Tell whether the value has any effect in this config.

        Configs that differ in idle knobs only are one trial.
        """
        return True

    def conflict(self, config: Config) -> str | None:  # noqa: ARG002
        """Return why this value cannot go with the rest of the config, or None."""
        return None

    def launch(self, value: KnobValue, plan: LaunchPlan) -> LaunchPlan:  # noqa: ARG002
        """Return the plan that starts a process under this value; pure."""
        return plan

    def apply(self, value: KnobValue, seams: Seams) -> None:  # noqa: B027
        """Make the program use this value from its next step on; runs inside the program."""

    def by_flag(self, flag: Flag, hardware: Hardware, profile: Profile) -> Domain | None:  # noqa: ARG002
        """Return the values worth trying by a flag of the program's own that means this knob.

        Asked where the seams cannot reach the program; None where the flag's values are not clear.
        """
        return None

    def from_flag(self, flag: Flag) -> KnobValue:
        """Return what the program's flag says, as a value of this knob."""
        return self.parse(flag.value)

    def to_flag(self, value: KnobValue, flag: Flag) -> str:  # noqa: ARG002
        """Return what to pass to the program's flag for a value of this knob."""
        return as_text(value)

    def follow(self, value: KnobValue, seams: Seams) -> None:  # noqa: B027
        """Do what a value asks for beside the act itself; all there is to do after a flag's act."""

    def parse(self, raw: object) -> KnobValue:
        """Return *raw*, from a YAML file or the command line, as a value of this knob.

        Raises:
            ValueError: with what the knob takes, when *raw* is none of its values.
        """
        if self.value_type is str:
            return self._parse_name(raw)
        if self.value_type is bool:
            if isinstance(raw, bool):
                return raw
            raise ValueError(f"takes true or false, not {raw!r}")
        if isinstance(raw, int) and not isinstance(raw, bool) and raw >= self.minimum:
            return raw
        raise ValueError(f"takes a whole number from {self.minimum} on, not {raw!r}")

    def _parse_name(self, raw: object) -> str:
        # YAML 1.1 reads a bare off/on as a boolean; people write `compile: off`.
        text = {False: "off", True: "on"}.get(raw, raw) if isinstance(raw, bool) else raw
        if isinstance(text, str) and text in self.choices:
            return text
        raise ValueError(f"takes {' or '.join(self.choices)}, not {raw!r}")


class StrategyOption(Knob):
    """An option of some strategies, which get it when the program starts.

    Attributes:
        strategies: Those that take it, by their names.
    """

    scope = Scope.RESTART
    strategies: ClassVar[frozenset[str]]

    def is_active(self, config: Config) -> bool:
        """Tell whether the strategy takes it; ranks without the knob train by ddp."""
        return config.get("strategy", "ddp") in self.strategies

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Hand it to the strategy."""
        seams.distribution.request(**{self.name: value})
