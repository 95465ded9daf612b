"""Flags of the program's command line and keyword parameters of its function.

Knobs can act through them: a Flag knows how the program spells an option and rewrites the argument
list to give it another value.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from autotune.program.config import KnobValue

AS_WRITTEN = "as written"  # the baseline's value of a flag whose default the program does not show
KEYWORD = "keyword."  # before the name of a function's keyword parameter


@dataclass(frozen=True)
class Flag:
    """One command-line option of the program as its parser defines it, or one keyword parameter.

    Attributes:
        name: Its longest spelling, such as ``--batch-size``; ``keyword.hidden`` for a function's
            parameter.
        choices: The only values it accepts, as text; empty if it accepts any.
        is_switch: Whether it takes no value: it is present (``true``) or absent (``false``).
        negation: The spelling that turns a switch off, such as ``--no-amp``; empty without one.
        has_optional_value: Whether its value may be omitted (argparse's ``nargs="?"``).
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
        """All spellings that the program accepts for this flag."""
        return (self.name, *self.others)

    @property
    def words(self) -> frozenset[str]:
        """The spellings without dashes and in lower case, as Python identifiers.

        Knobs find the flag that sets them by comparing these with their ``flag_names``.
        """
        bare = (s.removeprefix(KEYWORD).lstrip("-") for s in self.spellings)
        return frozenset(s.replace("-", "_").lower() for s in bare)

    @property
    def number(self) -> int | None:
        """The value as a non-negative integer, or None if it is something else."""
        text = str(self.value)
        return int(text) if text.isdecimal() else None

    @property
    def is_truth(self) -> bool:
        """Whether the flag can only be on or off."""
        return self.is_switch or str(self.value) in {"True", "False"}

    @property
    def is_on(self) -> bool:
        """Whether the flag is on now."""
        return str(self.value).lower() == "true"

    def truth(self, *, is_on: bool) -> str:
        """Return the text to pass for on or off.

        A flag whose value is the text "True" or "False" gets that capitalised text, because such a
        program compares strings. All others get ``true`` or ``false``.
        """
        return str(is_on) if isinstance(self.value, str) else str(is_on).lower()

    def into(self, args: Sequence[str], value: str) -> tuple[str, ...]:
        """Return the program's arguments with this flag set; ``AS_WRITTEN`` leaves them unchanged.

        The flag keeps its position if it was typed. Otherwise it is added at the end, but before a
        bare ``--``, since a parser reads no flags after that.
        """
        if value == AS_WRITTEN:
            return tuple(args)
        written = list(self._words_for(value, args))
        kept, place = self._without(args)
        at = _end(kept) if place is None else min(place, _end(kept))
        return (*kept[:at], *written, *kept[at:])

    def typed(self, value: KnobValue) -> KnobValue:
        """Return a value in the type that the keyword parameter takes."""
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
        """Yield the words that set the flag to a value on the command line."""
        if self.is_switch:
            if value == "true":
                yield self.name
            elif self.negation:
                yield self.negation
        # A separate value is used for short flags (some parsers read -b=4 as the value "=4") and
        # where the user typed it so; otherwise "=" keeps a value that begins with "-" attached.
        elif not _is_long(self.name) or self.name in args[: _end(args)]:
            yield self.name
            yield value
        else:
            yield f"{self.name}={value}"

    def _without(self, args: Sequence[str]) -> tuple[list[str], int | None]:
        """Return the arguments without this flag, and where its first occurrence was (or None)."""
        kept: list[str] = []
        place: int | None = None  # in *kept*, where the flag is inserted again
        skips = False
        names = {*self.spellings, self.negation} - {""}
        attached = tuple(f"{name}=" for name in self.spellings if _is_long(name))
        for position, arg in enumerate(args):
            if skips:
                skips = False
            elif arg == "--":  # later words are positional, even if they look like this flag
                return [*kept, *args[position:]], place
            elif arg in names or arg.startswith(attached):
                place = len(kept) if place is None else place
                following = args[position + 1 : position + 2]
                is_alone = self.is_switch or "=" in arg
                # A parser takes a word that begins with "-" for the next option, not for a value.
                is_bare = self.has_optional_value and (not following or following[0][:1] == "-")
                skips = not (is_alone or is_bare)
            else:
                kept.append(arg)
        return kept, place


def find(flags: Iterable[Flag], name: str) -> Flag | None:
    """Return the flag that has this spelling, or None."""
    return next((flag for flag in flags if name in flag.spellings), None)


def as_text(value: KnobValue) -> str:
    """Return a value as it is written on a command line; booleans are in lower case."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _is_long(spelling: str) -> bool:
    return spelling.startswith("--")


def _end(args: Sequence[str]) -> int:
    """Return where the flags end: at a bare ``--``."""
    return args.index("--") if "--" in args else len(args)
