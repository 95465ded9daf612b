"""The interface of all knobs: ``Knob``, and what its methods receive.

A knob is one setting that autotune may change in a program: its values, the hardware and the kind
of program on which it can act, and one call to ``Seams``, which does the work inside the program.
This module and the knobs never import torch, because the parent process loads them as well.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Protocol

from autotune.machine.hardware import Hardware
from autotune.program.config import Config, KnobValue
from autotune.program.domain import Domain, NotOffered, strategy_in
from autotune.program.flags import Flag, as_text
from autotune.program.may_change import MayChange
from autotune.program.profile import Profile
from autotune.program.program import LaunchPlan


class Scope(StrEnum):
    """When the value of a knob can change.

    ``LIVE`` knobs change in the running program, between two steps. ``RESTART`` knobs need a fresh
    process for each value, so trying them costs the program's start-up time.
    """

    LIVE = "live"
    RESTART = "restart"


@dataclass(frozen=True)
class Here:
    """The machine and the program for which a knob or a strategy decides what it offers."""

    hardware: Hardware
    profile: Profile


class Seams(Protocol):
    """What sets knobs inside the program; ``inside.steering.Steering`` does, which imports torch.

    Knobs call it in the program's process, on its main thread, before the first step or between two
    steps.
    """

    def set(self, knob: str, value: KnobValue) -> None:
        """Have the program use a value of one of autotune's knobs from its next step on."""


class Knob(ABC):
    """One setting that autotune may change in a program; each knob is a subclass.

    A subclass overrides only the methods it needs. Where a knob depends on another knob, it looks
    up that knob's value in ``config`` by name; knobs never import each other. The first line of the
    class docstring is shown to users in the guide.

    Attributes:
        is_hidden: It seldom helps, so only ``--tune NAME`` and the space ``full`` search it.
        choices: All values that exist; only for knobs of type ``str``.
        minimum: The smallest valid value; only for knobs of type ``int``.
        changes: What other values may change of a training; what a level means is checked on the
            program itself (``tuning/checking``).
        rounds_coarsely: Whether values are another number format. What they train is compared by
            its losses, as no step is the same within the rounding of a sum.
        usual: What a program has that says nothing about it.
        flag_names: Common names of program flags that set the same thing, without dashes and with
            underscores (``batch_size``). ``--use-flags`` recognises flags by them.
        flag_states: The values that an on/off flag of the program stands for: off, on.
    """

    name: str
    is_hidden: ClassVar[bool] = False
    scope: ClassVar[Scope] = Scope.LIVE
    value_type: ClassVar[type[bool] | type[int] | type[str]]
    choices: ClassVar[tuple[str, ...]] = ()
    minimum: ClassVar[int] = 0
    changes: ClassVar[MayChange]
    rounds_coarsely: ClassVar[bool] = False
    usual: ClassVar[KnobValue]
    flag_names: ClassVar[tuple[str, ...]] = ()
    flag_states: ClassVar[tuple[KnobValue, KnobValue] | None] = None

    @property
    def summary(self) -> str:
        """The first line of the class docstring, which says what the knob sets."""
        return (type(self).__doc__ or "").strip().splitlines()[0]

    @abstractmethod
    def domain(self, here: Here) -> Domain | NotOffered:
        """Return the values worth trying for this program on this machine.

        The result need not contain the program's current value, which the search adds.
        ``NotOffered`` carries the reason shown to the user, as a clause. Whether a knob changes
        what this program trains need not be foreseen: that is compared (``tuning/checking``).
        """

    def current(self, profile: Profile) -> KnobValue:
        """Return the value that the program uses without autotune: the baseline's value.

        It is called only where the knob is offered.
        """
        return self.usual

    def refusal(self, value: KnobValue, here: Here) -> str | None:
        """Return why the program cannot use a value here, as a clause; None if it can.

        It is called for values that the user names, which need not be in the domain.
        """
        return None

    def is_active(self, config: Config) -> bool:
        """Return whether the value has any effect in this config.

        Configs that differ only in inactive knobs count as one trial. A knob that is missing from
        *config* is not part of the search, so its value is unknown.
        """
        return True

    def conflict(self, config: Config) -> str | None:
        """Return why this value cannot be combined with the rest of the config, or None if it can.

        The reason is a sentence. Unlike an inactive knob, a conflict keeps the config from being
        measured.
        """
        return None

    def launch(self, value: KnobValue, plan: LaunchPlan) -> LaunchPlan:
        """Return the plan that starts a process under this value, as a changed copy of *plan*.

        Only knobs that act through environment variables or the number of ranks override it.
        """
        return plan

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Make the program use this value from its next step on.

        It runs inside the program, on its main thread. A knob from outside of autotune overrides
        it, unless it acts through ``launch()``.
        """
        seams.set(self.name, value)

    def flag_domain(self, flag: Flag, here: Here) -> Domain | None:
        """Return the values worth trying through the program's own flag, or None.

        It is called with ``--use-flags`` where ``domain()`` refuses, because the flag may reach
        what the seams cannot. None means that the flag's values are not understood or that they
        would change what is trained.
        """
        return Domain(self.flag_states) if self.flag_states and flag.is_truth else None

    def parse_flag(self, flag: Flag) -> KnobValue:
        """Return the present value of the program's flag, as a value of this knob.

        It becomes the baseline's value where the knob acts through the flag.
        """
        if self.value_type is int:
            return flag.number or self.minimum
        return self.flag_states[flag.is_on] if self.flag_states else self.parse(flag.value)

    def format_flag(self, value: KnobValue, flag: Flag) -> str:
        """Return the text to pass to the program's flag for a value of this knob."""
        return (
            flag.truth(is_on=value != self.flag_states[0]) if self.flag_states else as_text(value)
        )

    def parse(self, raw: object) -> KnobValue:
        """Return *raw*, from a YAML file or the command line, as a value of this knob.

        Raises:
            ValueError: The message completes "knob 'x' …" and says which values the knob takes.
        """
        if self.value_type is str:
            # YAML 1.1 reads a bare off/on as a boolean; people write `compile: off`.
            text = {False: "off", True: "on"}.get(raw, raw) if isinstance(raw, bool) else raw
            if isinstance(text, str) and text in self.choices:
                return text
            raise ValueError(f"takes {' or '.join(self.choices)}, not {raw!r}")
        if self.value_type is bool:
            if isinstance(raw, bool):
                return raw
            raise ValueError(f"takes true or false, not {raw!r}")
        # In Python True is an int, and "workers: true" would silently become one worker.
        if isinstance(raw, int) and not isinstance(raw, bool) and raw >= self.minimum:
            return raw
        raise ValueError(f"takes a whole number from {self.minimum} on, not {raw!r}")


class StrategyOption(Knob):
    """An option of one or more strategies, which read it when the program starts."""

    is_hidden = True
    scope = Scope.RESTART  # a strategy acts on a model once
    strategies: ClassVar[frozenset[str]]

    def is_active(self, config: Config) -> bool:
        return strategy_in(config, "ddp") in self.strategies

    def options(self, value: KnobValue) -> Mapping[str, KnobValue]:
        """Return what a value passes to the strategy."""
        return {self.name: value}


class StrategyOptions(StrategyOption):
    """Several options of a strategy as one knob, whose values name those that are not usual.

    Attributes:
        parts: What each part of a value passes to the strategy; parts are joined by plus signs.
    """

    value_type = str
    usual = "default"  # what the program itself passes to its strategy is not known
    parts: ClassVar[Mapping[str, Mapping[str, KnobValue]]]

    def parse(self, raw: object) -> KnobValue:
        if isinstance(raw, str) and (raw == "default" or self.parts.keys() >= set(raw.split("+"))):
            return raw
        return super().parse(raw)

    def options(self, value: KnobValue) -> Mapping[str, KnobValue]:
        parts = str(value).split("+") if value != "default" else ()
        return {name: option for part in parts for name, option in self.parts[part].items()}
