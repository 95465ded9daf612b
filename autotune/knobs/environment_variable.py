"""The knob of an environment variable."""

from __future__ import annotations

import os
import re

from autotune.knobs.base import Here, Knob, Scope
from autotune.program import flags
from autotune.program.config import KnobValue
from autotune.program.domain import Domain
from autotune.program.flags import AS_WRITTEN
from autotune.program.profile import Profile
from autotune.program.program import LaunchPlan

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")  # POSIX, and small letters


class EnvironmentVariable(Knob):
    """An environment variable, such as ``$KMP_BLOCKTIME``; its values come from ``--env``.

    Which variables a best.yaml may set is the matter of ``dangerous_variables``.
    """

    scope = Scope.RESTART
    value_type = str

    def __init__(self, name: str) -> None:
        self.name = name

    def domain(self, here: Here) -> Domain:
        """Return its present value: others are the user's to name."""
        return Domain((self.current(here.profile),))

    def current(self, profile: Profile) -> KnobValue:
        """Return what the program inherits."""
        return os.environ.get(self._variable, AS_WRITTEN)

    def launch(self, value: KnobValue, plan: LaunchPlan) -> LaunchPlan:
        """Set it."""
        return plan if value == AS_WRITTEN else plan.with_env(**{self._variable: str(value)})

    def parse(self, raw: object) -> KnobValue:
        """Return the value as text."""
        if not isinstance(raw, KnobValue):
            raise ValueError(f"takes a number, true, false or text, not {raw!r}")  # noqa: TRY004
        if NAME.fullmatch(self._variable) is None:
            raise ValueError(f"is no environment variable: '{self._variable}' is no name")
        text = flags.as_text(raw)
        if "\0" in text:
            raise ValueError(f"takes text without NUL characters, not {text!r}")
        return text

    @property
    def _variable(self) -> str:
        return self.name.removeprefix("$")
