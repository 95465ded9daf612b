"""Table: the options of one command, and how they are read off the front of its words.

Covered: combined short switches (``-uB``), values in the same or the next word, ``--name=value``, a
bare ``--``, and abbreviated long options.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from autotune.errors import UsageError, did_you_mean


def named(text: str) -> frozenset[str]:
    """Return a set of names that are written as one text with spaces between them."""
    return frozenset(text.split())


@dataclass(frozen=True)
class Taken:
    """The options that were read off the front of a command's words.

    Attributes:
        options: Names and values, in order; a switch has an empty value.
        words: The words of these options, as they were typed.
        rest: The words from the first that is not an option.
    """

    options: tuple[tuple[str, str], ...]
    words: tuple[str, ...]
    rest: tuple[str, ...]

    def last(self, *names: str) -> str | None:
        """Return the value of the last of these options, or None without any.

        If an option is repeated, its last value counts.
        """
        return next((value for name, value in reversed(self.options) if name in names), None)


@dataclass(frozen=True)
class Table:
    """The options that one command accepts.

    Attributes:
        command: The command's name, for messages.
        valued: Options that take a value.
        switches: Options without a value.
        ends: Options with a value after which all remaining words belong to the program, such as
            ``python -m``.
        abbreviates: Whether long options may be abbreviated and written with underscores, as
            argparse and torchrun allow.
    """

    command: str
    valued: frozenset[str] = frozenset()
    switches: frozenset[str] = frozenset()
    ends: frozenset[str] = frozenset()
    abbreviates: bool = False

    def take(self, words: Sequence[str]) -> Taken:
        """Read the options off the front of a command's words.

        Raises:
            UsageError: An option is unknown, or lacks its value.
        """
        options: list[tuple[str, str]] = []
        place = 0
        # A single "-" stands for standard input and is not an option.
        while place < len(words) and words[place].startswith("-") and words[place] != "-":
            word = words[place]
            place += 1
            if word == "--":
                break
            following = words[place] if place < len(words) else None
            found, takes_next = self._read(word, following)
            options += found
            place += takes_next
            if found[-1][0] in self.ends:
                break
        return Taken(tuple(options), tuple(words[:place]), tuple(words[place:]))

    def _read(self, word: str, following: str | None) -> tuple[list[tuple[str, str]], bool]:
        """Return the options in one word, and whether the last one's value is the next word."""
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            name = self._full(name)
            if equals or name in self.switches:
                return [(name, value)], False
            return [(name, self._value(name, following))], True
        found: list[tuple[str, str]] = []
        for position, letter in enumerate(word[1:], start=2):
            name = f"-{letter}"
            # A value ends a group of short options: "-uW error" is -u and then -W.
            if name in self.valued | self.ends:
                value = word[position:]
                if value:
                    return [*found, (name, value)], False
                return [*found, (name, self._value(name, following))], True
            if name not in self.switches:
                raise self._unknown(name if len(word) > 2 else word)
            found.append((name, ""))
        return found, False

    def _full(self, name: str) -> str:
        known = self.valued | self.switches
        if not self.abbreviates:
            if name not in known:
                raise self._unknown(name)
            return name
        dashed = "--" + name[2:].replace("_", "-")
        if dashed in known:
            return dashed
        # As in argparse, an abbreviation must fit exactly one option.
        begun = [option for option in known if option.startswith(dashed)]
        if len(begun) != 1:
            raise self._unknown(name)
        return begun[0]

    def _value(self, name: str, following: str | None) -> str:
        if following is None:
            raise UsageError(f"{self.command} {name} needs a value.")
        return following

    def _unknown(self, name: str) -> UsageError:
        hint = did_you_mean(name, sorted(self.valued | self.switches | self.ends))
        return UsageError(
            f"autotune knows no option {name} of {self.command}.{hint} Options of the program come "
            "after its name; if this one only says how it is started, leave it out."
        )
