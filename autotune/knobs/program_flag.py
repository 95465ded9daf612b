"""The knob of a flag of the program's own, or of a keyword of its function."""

from __future__ import annotations

from autotune import flags
from autotune.config import KnobValue
from autotune.domain import Domain, NotOffered
from autotune.errors import did_you_mean
from autotune.flags import AS_WRITTEN, KEYWORD
from autotune.hardware import Hardware
from autotune.knobs.base import Knob, Scope
from autotune.profile import Profile

NUMBERS = {"int": int, "float": float}


class ProgramFlag(Knob):
    """A flag of the program's own, such as ``--hidden``; of a function ``keyword.hidden``.

    Its values come from ``--arg``; what they do to learning is the user's to judge.
    """

    scope = Scope.RESTART
    value_type = str

    def __init__(self, name: str) -> None:
        self.name = name

    def domain(self, hardware: Hardware, profile: Profile) -> Domain | NotOffered:  # noqa: ARG002
        """Return its present value: others are the user's to name."""
        flag = flags.find(profile.flags, self.name)
        if flag is None and profile.flags:
            known = [s for f in profile.flags for s in f.spellings]
            hint = did_you_mean(self.name, known)
            return NotOffered(f"the program has no such flag.{hint}".rstrip("."))
        return Domain((self.current(profile),))

    def current(self, profile: Profile) -> KnobValue:
        """Return what the program started with."""
        flag = flags.find(profile.flags, self.name)
        return AS_WRITTEN if flag is None or flag.value is None else self.parse(flag.value)

    def refusal(
        self,
        value: KnobValue,
        hardware: Hardware,  # noqa: ARG002
        profile: Profile,
    ) -> str | None:
        """Return why the program's parser would not take a value."""
        flag = flags.find(profile.flags, self.name)
        text = flags.as_text(value)
        if flag is None or text == AS_WRITTEN:
            return None
        if flag.is_switch and text not in {"true", "false"}:
            return f"it is a switch, true or false, not {text}"
        if flag.choices and text not in flag.choices:
            return f"the program takes {' or '.join(flag.choices)}, not {text}"
        if flag.takes in NUMBERS and not _is_number(text, flag.takes):
            return f"the program takes {flag.takes} values, not {text}"
        return None

    def parse(self, raw: object) -> KnobValue:
        """Return a flag's value as text; a keyword's as the number, truth or text that it is."""
        if not isinstance(raw, KnobValue):
            raise ValueError(f"takes a number, true, false or text, not {raw!r}")  # noqa: TRY004
        return raw if self.name.startswith(KEYWORD) else flags.as_text(raw)


def _is_number(text: str, takes: str) -> bool:
    try:
        NUMBERS[takes](text)
    except ValueError:
        return False
    return True
