"""Flags of the program's own command line, and keywords of its function: what they are called."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from autotune.config import KnobValue

AS_WRITTEN = "as written"  # the baseline's value of a flag that the program does not tell us
KEYWORD = "keyword."  # before the name of a function's keyword parameter


@dataclass(frozen=True)
class Flag:
    """One flag, as the program's own parser knows it.

    Attributes:
        name: Its longest spelling, such as ``--batch-size``; ``keyword.hidden`` for a function.
        others: Its other spellings.
        value: What it was when the program started; None where it had no value.
        takes: Name of the type of its values.
        choices: The only values it takes, as text; empty for any.
        is_switch: It stands alone: it is there (``true``) or not (``false``).
        negation: The spelling that takes a switch back, empty without one.
    """

    name: str
    others: tuple[str, ...] = ()
    value: KnobValue | None = None
    takes: str = "str"
    choices: tuple[str, ...] = ()
    is_switch: bool = False
    negation: str = ""

    @property
    def spellings(self) -> tuple[str, ...]:
        """All that the program takes for it."""
        return (self.name, *self.others)

    @property
    def words(self) -> frozenset[str]:
        """Its spellings without dashes, as Python would write them."""
        bare = (s.removeprefix(KEYWORD).lstrip("-") for s in self.spellings)
        return frozenset(s.replace("-", "_").lower() for s in bare)

    @property
    def number(self) -> int | None:
        """Its value as a whole number, None where it is none."""
        text = str(self.value)
        return int(text) if text.isdecimal() else None

    @property
    def is_truth(self) -> bool:
        """It is on or off, and nothing else."""
        return self.is_switch or str(self.value) in {"True", "False"}

    @property
    def is_on(self) -> bool:
        """It is on now."""
        return str(self.value).lower() == "true"

    def truth(self, *, is_on: bool) -> str:
        """Return what to pass for on or off: a program that compares with True wants True."""
        return str(is_on) if isinstance(self.value, str) else str(is_on).lower()

    def into(self, args: Sequence[str], value: str) -> tuple[str, ...]:
        """Return the program's arguments with this flag at a value, in place of what they had."""
        if value == AS_WRITTEN:
            return tuple(args)
        kept, rest = _split_at_dashes(self._without(args))
        if not self.is_switch:
            return (*kept, f"{self.name}={value}" if _is_long(self.name) else self.name + value,
                    *rest)  # fmt: skip
        if value == "true":
            return (*kept, self.name, *rest)
        return (*kept, self.negation, *rest) if self.negation else (*kept, *rest)

    def _without(self, args: Sequence[str]) -> list[str]:
        kept: list[str] = []
        skips = False
        for position, arg in enumerate(args):
            if skips:
                skips = False
            elif arg == "--":
                return [*kept, *args[position:]]
            elif arg in self.spellings or (self.negation and arg == self.negation):
                skips = not self.is_switch
            elif not any(_is_long(s) and arg.startswith(f"{s}=") for s in self.spellings):
                kept.append(arg)
        return kept


def find(flags: Iterable[Flag], name: str) -> Flag | None:
    """Return the flag with this spelling."""
    return next((flag for flag in flags if name in flag.spellings), None)


def as_text(value: KnobValue) -> str:
    """Return a value as it is written on a command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_long(spelling: str) -> bool:
    return spelling.startswith("--")


def _split_at_dashes(args: list[str]) -> tuple[list[str], list[str]]:
    """What stands before a bare ``--``, and the rest with it: flags end there."""
    if "--" not in args:
        return args, []
    at = args.index("--")
    return args[:at], args[at:]
