"""Knob: one thing that autotune may set in a program; the interface of the family."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar, Protocol

from autotune.machine.hardware import Hardware
from autotune.program.config import Config, KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.flags import Flag, as_text
from autotune.program.profile import Profile
from autotune.program.program import LaunchPlan


class Scope(StrEnum):
    """When a knob can change."""

    LIVE = "live"
    RESTART = "restart"


@dataclass(frozen=True)
class Here:
    """Where a knob or a strategy is asked what it offers: on this machine, for this program."""

    hardware: Hardware
    profile: Profile


class Seams(Protocol):
    """What knobs may ask for inside the program; ``inside.steering.Steering`` is the one that acts.

    Knobs call it in the program's process, on its main thread, between two steps or before the
    first one. It exists so that knobs need not import torch.
    """

    def set_loader_options(self, **options: int | bool | str) -> None:
        """Rebuild the training loader with these options, named as their knobs are."""

    def set_torch(self, name: str, value: KnobValue) -> None:
        """Set one of the settings that torch keeps per process, named as its knob is."""

    def set_interop_threads(self, threads: int) -> None:
        """Set torch's inter-op threads. Torch allows that once per process."""

    def set_optimizer_implementation(self, name: str) -> None:
        """Make all optimizers update their parameters by ``for-loop``, ``foreach`` or ``fused``."""

    def set_zero_grad_to_none(self, *, enabled: bool) -> None:
        """Make ``zero_grad`` drop gradients instead of filling them with zeros."""

    def set_channels_last(self, *, enabled: bool) -> None:
        """Store 4-D weights and inputs of the model in NHWC order."""

    def set_non_blocking(self, *, enabled: bool) -> None:
        """Copy pinned memory to the device without waiting."""

    def set_precision(self, dtype_name: str | None) -> None:
        """Compute in this torch dtype (``"bfloat16"``); None for the program's own."""

    def compile(self, mode: str | None) -> None:
        """Compile the model in this mode of ``torch.compile``; None leaves it eager."""

    def set_compile_dynamic(self, *, dynamic: bool | None) -> None:
        """Compile for any shape, or for each shape; None lets torch decide."""

    def checkpoint_blocks(self, *, every: int) -> None:
        """Recompute every n-th block's activations in the backward pass; 0 for none."""

    def set_accumulation_steps(self, steps: int) -> None:
        """Make one optimizer step of this many batches."""

    def scale_lr_with(self, **batch: int) -> None:
        """Scale learning rates with the global batch, whose factors are named as their knobs."""

    def set_strategy(self, strategy: str) -> None:
        """Train by this strategy; before the program builds its optimizer."""

    def set_strategy_options(self, **options: KnobValue) -> None:
        """Give the strategy these options, named as their knobs are."""


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
    def domain(self, here: Here) -> Domain | NotOffered:
        """Return the values worth trying here, or why there are none."""

    @abstractmethod
    def current(self, profile: Profile) -> KnobValue:
        """Return what the program does today: the knob's value in the baseline."""

    def refusal(
        self,
        value: KnobValue,
        here: Here,
    ) -> str | None:
        """Return why a value that the user names, beyond those offered, cannot be had here."""
        return None

    def is_active(self, config: Config) -> bool:
        """Tell whether the value has any effect in this config.

        Configs that differ in idle knobs only are one trial.
        """
        return True

    def conflict(self, config: Config) -> str | None:
        """Return why this value cannot go with the rest of the config, or None."""
        return None

    def launch(self, value: KnobValue, plan: LaunchPlan) -> LaunchPlan:
        """Return the plan that starts a process under this value; pure."""
        return plan

    def apply(self, value: KnobValue, seams: Seams) -> None:  # noqa: B027
        """Make the program use this value from its next step on; runs inside the program."""

    def flag_domain(self, flag: Flag, here: Here) -> Domain | None:
        """Return the values worth trying by a flag of the program's own that means this knob.

        Asked where the seams cannot reach the program; None where the flag's values are not clear.
        """
        return None

    def parse_flag(self, flag: Flag) -> KnobValue:
        """Return what the program's flag says, as a value of this knob."""
        return self.parse(flag.value)

    def format_flag(self, value: KnobValue, flag: Flag) -> str:
        """Return what to pass to the program's flag for a value of this knob."""
        return as_text(value)

    def apply_side_effects(self, value: KnobValue, seams: Seams) -> None:  # noqa: B027
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
        seams.set_strategy_options(**{self.name: value})
