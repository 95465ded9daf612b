"""The knob of an environment variable, whose name and values the user gives.

Programs and libraries read most variables while they start, so each value needs a fresh process.
"""

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

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")  # POSIX names, and lower case


class EnvironmentVariable(Knob):
    """An environment variable, such as ``$KMP_BLOCKTIME``; its values come from ``--env``.

    autotune knows nothing about its meaning. Variables that can load code (``LD_PRELOAD``) are not
    treated here: ``program.dangerous_variables`` decides which of them a best.yaml may set.
    """

    scope = Scope.RESTART
    value_type = str

    def __init__(self, name: str) -> None:
        self.name = name

    def domain(self, here: Here) -> Domain:
        """Return the variable's present value only: the user must name the others."""
        return Domain((self.current(here.profile),))

    def current(self, profile: Profile) -> KnobValue:
        """Return the value that the program inherits, or "as written" if the variable is unset."""
        return os.environ.get(self._variable, AS_WRITTEN)

    def launch(self, value: KnobValue, plan: LaunchPlan) -> LaunchPlan:
        """Set the variable in the program's environment; "as written" leaves it as it is."""
        return plan if value == AS_WRITTEN else plan.with_env(**{self._variable: str(value)})

    def parse(self, raw: object) -> KnobValue:
        """Return the value as text; numbers and booleans are written as in YAML.

        Raises:
            ValueError: The value is not a scalar or contains a NUL character, or the name is not a
                valid name of a variable.
        """
        if not isinstance(raw, KnobValue):
            raise ValueError(f"takes a number, true, false or text, not {raw!r}")  # noqa: TRY004
        if NAME.fullmatch(self._variable) is None:
            raise ValueError(
                f"is not an environment variable: '{self._variable}' is not a valid name"
            )
        text = flags.as_text(raw)
        if "\0" in text:
            raise ValueError(f"takes text without NUL characters, not {text!r}")
        return text

    @property
    def _variable(self) -> str:
        return self.name.removeprefix("$")
