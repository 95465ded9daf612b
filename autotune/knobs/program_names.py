"""Knobs that only the user's program knows: its flags, keywords of its function, its environment.

Programs read these while they start, so each value needs a fresh process.
"""

from __future__ import annotations

import os
import re

from autotune.errors import did_you_mean
from autotune.knobs.base import Here, Knob, Scope
from autotune.program import flags
from autotune.program.config import KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.flags import AS_WRITTEN, KEYWORD
from autotune.program.may_change import MayChange
from autotune.program.profile import Profile
from autotune.program.program import LaunchPlan

NUMBERS = {"int": int, "float": float}
VARIABLE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")  # POSIX names, and lower case


class ProgramFlag(Knob):
    """One of the program's own flags, such as ``--hidden``; for a function ``keyword.hidden``.

    Its values come from ``--set``. autotune does not know what the flag does, so the user must
    judge whether its values train the same thing.
    """

    scope = Scope.RESTART
    value_type = str
    changes = MayChange.ANY

    def __init__(self, name: str) -> None:
        self.name = name

    def domain(self, here: Here) -> Domain | NotOffered:
        flag = flags.find(here.profile.flags, self.name)
        if flag is None and here.profile.flags:
            known = [s for f in here.profile.flags for s in f.spellings]
            hint = did_you_mean(self.name, known)
            return NotOffered(f"the program has no such flag.{hint}".rstrip("."))
        return Domain((self.current(here.profile),))

    def current(self, profile: Profile) -> KnobValue:
        flag = flags.find(profile.flags, self.name)
        return AS_WRITTEN if flag is None or flag.value is None else self.parse(flag.value)

    def refusal(self, value: KnobValue, here: Here) -> str | None:
        flag = flags.find(here.profile.flags, self.name)
        text = flags.as_text(value)
        if flag is None or text == AS_WRITTEN:
            return None
        if flag.is_switch and text not in {"true", "false"}:
            return f"it is a switch, true or false, not {text}"
        if flag.choices and text not in flag.choices:
            return f"the program takes {' or '.join(flag.choices)}, not {text}"
        if flag.takes in NUMBERS:
            try:
                NUMBERS[flag.takes](text)
            except ValueError:
                return f"the program takes {flag.takes} values, not {text}"
        return None

    def parse(self, raw: object) -> KnobValue:
        if not isinstance(raw, KnobValue):
            raise ValueError(f"takes a number, true, false or text, not {raw!r}")  # noqa: TRY004
        return raw if self.name.startswith(KEYWORD) else flags.as_text(raw)


class EnvironmentVariable(Knob):
    """An environment variable, such as ``$KMP_BLOCKTIME``; its values come from ``--set``.

    autotune knows nothing about its meaning. Which variables a file may set without a word of the
    user's, ``space.tuning_variables`` decides.
    """

    scope = Scope.RESTART
    changes = MayChange.ROUNDING  # what trains otherwise is found where it is compared
    value_type = str

    def __init__(self, name: str) -> None:
        self.name = name

    def domain(self, here: Here) -> Domain:
        return Domain((self.current(here.profile),))

    def current(self, profile: Profile) -> KnobValue:
        return os.environ.get(self._variable, AS_WRITTEN)

    def launch(self, value: KnobValue, plan: LaunchPlan) -> LaunchPlan:
        return plan if value == AS_WRITTEN else plan.with_env(**{self._variable: str(value)})

    def parse(self, raw: object) -> KnobValue:
        if not isinstance(raw, KnobValue):
            raise ValueError(f"takes a number, true, false or text, not {raw!r}")  # noqa: TRY004
        if VARIABLE_NAME.fullmatch(self._variable) is None:
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
