"""Flags of the program's own command line, and keywords of its function: what they are called."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from autotune.program.config import KnobValue

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
        has_optional_value: It may stand alone as well.
    """

    name: str
    others: tuple[str, ...] = ()
    value: KnobValue | None = None
    takes: str = "str"
    choices: tuple[str, ...] = ()
    is_switch: bool = False
    negation: str = ""
    has_optional_value: bool = False

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
        """Return the program's arguments with this flag at a value, where and how it was typed."""
        if value == AS_WRITTEN:
            return tuple(args)
        written = list(self._words_for(value, args))
        kept, place = self._without(args)
        end = kept.index("--") if "--" in kept else len(kept)
        at = end if place is None else min(place, end)
        return (*kept[:at], *written, *kept[at:])

    def typed(self, value: KnobValue) -> KnobValue:
        """Return a value as a keyword takes it."""
        text = as_text(value)
        match self.takes:
            case "int":
                return int(text)
            case "float":
                return float(text)
            case "bool":
                return text.lower() == "true"
            case _:
                return value

    def _words_for(self, value: str, args: Sequence[str]) -> Iterator[str]:
        """What stands for the value on the command line."""
        if self.is_switch:
            if value == "true":
                yield self.name
            elif self.negation:
                yield self.negation
        elif not _is_long(self.name) or self.name in _before_dashes(args):
            yield self.name
            yield value
        else:
            yield f"{self.name}={value}"

    def _without(self, args: Sequence[str]) -> tuple[list[str], int | None]:
        """The arguments that are not this flag's, and where its first one was."""
        kept: list[str] = []
        place: int | None = None
        skips = False
        for position, arg in enumerate(args):
            if skips:
                skips = False
            elif arg == "--":
                return [*kept, *args[position:]], place
            elif self._is_own(arg):
                place = len(kept) if place is None else place
                following = args[position + 1 : position + 2]
                is_alone = self.is_switch or "=" in arg
                is_bare = self.has_optional_value and (not following or following[0][:1] == "-")
                skips = not (is_alone or is_bare)
            else:
                kept.append(arg)
        return kept, place

    def _is_own(self, arg: str) -> bool:
        if arg in self.spellings or (self.negation and arg == self.negation):
            return True
        return any(_is_long(s) and arg.startswith(f"{s}=") for s in self.spellings)


def find(flags: Iterable[Flag], name: str) -> Flag | None:
    """Return the flag with this spelling."""
    return next((flag for flag in flags if name in flag.spellings), None)


def as_text(value: KnobValue) -> str:
    """Return a value as it is written on a command line."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_long(spelling: str) -> bool:
    return spelling.startswith("--")


def _before_dashes(args: Sequence[str]) -> Sequence[str]:
    """What stands before a bare ``--``: flags end there."""
    return args[: args.index("--")] if "--" in args else args
