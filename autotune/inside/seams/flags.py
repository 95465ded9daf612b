"""The seam at command-line parsers: which flags the program has, and which values they had.

Some knobs can be set only by a flag of the program's, such as its batch size where the seams cannot
reach its loader. The flags that are seen here are what a search may offer for that.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

from autotune.inside.hubs.patches import Patches, Seam
from autotune.program.config import KnobValue
from autotune.program.flags import KEYWORD, Flag, find

CLICKS = ("click.core", "typer._click.core")  # typer ships a copy of click


class FlagsSeam(Seam):
    """Watches argparse and click read the command line.

    ``HfArgumentParser`` is an argparse parser, and typer uses click.

    Attributes:
        seen: The flags, in the order in which parsers read them.
    """

    def __init__(self) -> None:
        self.seen: list[Flag] = []
        self._patches = Patches()

    def install(self) -> None:
        """Begin to watch argparse, and click and typer where they are installed."""
        self._patches.wrap(argparse.ArgumentParser, "parse_known_args", self._parse)
        for name in CLICKS:
            with suppress(ImportError):
                command = importlib.import_module(name).Command
                self._patches.wrap(command, "parse_args", self._parse_by_click)

    def see_keywords(self, signature: inspect.Signature, given: dict[str, KnobValue]) -> None:
        """Note the parameters of the program's function that have a plain value.

        For those that the user gives by keyword that value counts, else the default. Parameters
        that are given by position cannot be given by keyword as well.
        """
        placed = list(signature.parameters)[: len(sys.argv) - 1]
        for name, parameter in signature.parameters.items():
            value = given.get(name, parameter.default)
            if isinstance(value, KnobValue) and name not in placed:
                self.seen.append(Flag(KEYWORD + name, value=value, takes=type(value).__name__))

    def all(self) -> tuple[Flag, ...]:
        """Return all flags that are known.

        These are the ones that parsers read, followed by those on the command line that no parser
        has read, for programs that look at ``sys.argv`` themselves.
        """
        return (*self.seen, *_unknown(sys.argv[1:], self.seen))

    def _parse(
        self, original: Callable[..., Any], parser: Any, args: Any = None, *more: Any, **named: Any
    ) -> Any:
        # Programs also parse config files and the like; those arguments are not flags that can be
        # typed. A subcommand's parser gets a part of the command line.
        is_command_line = args is None or set(args) <= set(sys.argv)
        parsed = original(parser, args, *more, **named)
        if is_command_line:
            self.seen += _of_argparse(parser, parsed[0])
        return parsed

    def _parse_by_click(
        self, original: Callable[..., Any], command: Any, context: Any, args: list[str]
    ) -> Any:
        rest = original(command, context, args)
        with suppress(AttributeError):  # in another version of click, flags stay unknown
            self.seen += list(_of_click(command, context.params))
        return rest


def _of_argparse(parser: argparse.ArgumentParser, namespace: Any) -> Iterator[Flag]:
    for action in parser._actions:  # noqa: SLF001 - argparse has no other list of them
        value = getattr(namespace, action.dest, None)
        if not action.option_strings or isinstance(value, (list, tuple, dict)):
            continue
        if not isinstance(value, KnobValue):
            value = None  # a path, a dtype: the object does not tell what was typed for it
        if isinstance(action, argparse.BooleanOptionalAction):
            spellings = [s for s in action.option_strings if not s.startswith("--no-")]
            negations = [s for s in action.option_strings if s.startswith("--no-")]
            yield _switch(spellings, negations, is_on=bool(value))
        elif action.nargs == 0 and action.const is not None and action.dest != "help":
            yield _switch(action.option_strings, [], is_on=value == action.const)
        elif action.nargs in {None, "?"}:
            takes = _type_name(action.type, value)
            option = _option(action.option_strings, value, takes, action.choices)
            yield replace(option, has_optional_value=action.nargs == "?")


def _of_click(command: Any, values: dict[str, Any]) -> Iterator[Flag]:
    for option in command.params:
        value = values.get(option.name)
        if option.param_type_name != "option" or not isinstance(value, KnobValue | None):
            continue
        if option.is_flag:
            yield _switch(option.opts, option.secondary_opts, is_on=bool(value))
        elif option.nargs == 1 and not option.multiple:
            kind = getattr(option, "type", None)  # typer's copy names the attribute otherwise
            takes = {"integer": "int", "float": "float"}.get(getattr(kind, "name", ""))
            takes = takes or _type_name(type(value), value)
            yield _option(option.opts, value, takes, getattr(kind, "choices", None))


def _switch(spellings: Sequence[str], negations: Sequence[str], *, is_on: bool) -> Flag:
    name, *others = sorted(spellings, key=len, reverse=True)
    negation = max(negations, key=len, default="")
    return Flag(name, tuple(others), is_on, "bool", (), is_switch=True, negation=negation)


def _option(spellings: Sequence[str], value: Any, takes: str, choices: Any) -> Flag:
    name, *others = sorted(spellings, key=len, reverse=True)
    texts = tuple(str(getattr(c, "value", c)) for c in choices or ())
    return Flag(name, tuple(others), value, takes, texts)


def _type_name(kind: Any, value: object) -> str:
    if kind in {int, float}:
        return str(kind.__name__)
    return "bool" if isinstance(value, bool) else "str"


def _unknown(args: Sequence[str], seen: Sequence[Flag]) -> Iterator[Flag]:
    """Yield the flags among *args* that no parser has shown.

    Without a parser it is a guess whether a word is a value: a flag that is followed by a word
    without a dash is taken to have that word as its value, any other is taken for a switch.
    """
    for position, arg in enumerate(args):
        name, equals, value = arg.partition("=")
        # "-" stands for standard input, "--" ends the flags, and "-5" is a number
        if not name.startswith("-") or name in {"-", "--"} or name[1:2].isdigit():
            continue
        if find(seen, name) is not None or any(name == flag.negation for flag in seen):
            continue
        following = args[position + 1 : position + 2]
        if equals:
            yield Flag(name, value=value)
        elif following and not following[0].startswith("-"):
            yield Flag(name, value=following[0])
        else:
            yield Flag(name, value=True, is_switch=True)
