"""Reading of YAML that people edit, with the line of each key.

Messages about a file need the line, which ``yaml.safe_load`` does not give. A file may also be
somebody else's, so what it can ask of this process has bounds while it is read. Refused is what
nobody writes into these files by hand: aliases, which make a billion entries of ten lines, and keys
that are no words or numbers.
"""

from __future__ import annotations

import reprlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from autotune.errors import FileFormatError
from autotune.files import access

# A best.yaml has some 60 entries in 4 levels and 1 kB; a search space of 300 flags, ten times more
MAX_BYTES, MAX_DEPTH, MAX_ENTRIES = 1_000_000, 32, 10_000
# Python's own limit for the digits of a number is 4,300, and YAML has numbers to the base 60
MAX_DIGITS = 400
TAG = "tag:yaml.org,2002:"
WORDS = {f"{TAG}{kind}" for kind in ("str", "int", "float", "bool", "null")}

KeyPath = tuple[str, ...]


@dataclass(frozen=True)
class YamlFile:
    """The content of a YAML file whose top level is a mapping.

    Attributes:
        lines: Line number of each key, from 1, by the keys that lead to it.
    """

    path: Path
    data: Mapping[str, Any]
    lines: Mapping[KeyPath, int]

    def where(self, *keys: str) -> str:
        """Return ``file:line`` of a key, or of its nearest parent that is in the file."""
        while keys and keys not in self.lines:
            keys = keys[:-1]
        return f"{self.path}:{self.lines[keys]}" if keys else str(self.path)


class _Refused(yaml.MarkedYAMLError):
    """What is YAML, but nothing that a file of autotune may ask for."""


class _Loader(yaml.SafeLoader):
    """PyYAML's safe loader with bounds, and with the line where a value cannot be converted."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = self._entries = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        event: yaml.Event = self.peek_event()  # type: ignore[no-untyped-call]
        self._entries += 1
        if isinstance(event, yaml.AliasEvent):
            what = f"it repeats a part by an alias (*{event.anchor}). Write the part again"
        elif self._depth >= MAX_DEPTH:
            what = f"autotune reads files of up to {MAX_DEPTH} levels"
        elif self._entries > MAX_ENTRIES:
            what = f"autotune reads files of up to {MAX_ENTRIES:,} entries"
        else:
            self._depth += 1
            node = super().compose_node(parent, index)
            self._depth -= 1
            is_key = isinstance(parent, yaml.MappingNode) and index is None
            if not is_key or (node is not None and node.tag in WORDS):
                return node
            what = "only a word or a number can be a key. Put anything else in quotes"
        raise _Refused(problem=what, problem_mark=event.start_mark)  # type: ignore[arg-type]

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:  # noqa: FBT001, FBT002
        kind = node.tag.removeprefix(TAG)
        is_long = isinstance(node, yaml.ScalarNode) and len(node.value) > MAX_DIGITS
        try:
            if kind == "str" or not is_long:
                return super().construct_object(node, deep)
        except (ValueError, TypeError, LookupError, AttributeError):  # of PyYAML's converters
            pass
        what = f"{reprlib.repr(node.value)} is no {kind}. If it is text, put it in quotes"
        raise _Refused(problem=what, problem_mark=node.start_mark)


def read(path: Path) -> YamlFile:
    """Return the content of a YAML file.

    Raises:
        FileFormatError: It cannot be read, is not a YAML mapping, contains a key twice, is larger
            than 1 MB, or has aliases, over 10,000 entries or over 32 levels.
    """
    try:
        node, data = _parsed(access.read(path, MAX_BYTES).decode())
    except FileNotFoundError as error:
        raise FileFormatError(f"There is no file '{path}'.") from error
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or error
        raise FileFormatError(f"'{path}' cannot be read: {why}.") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = f":{mark.line + 1}" if mark else ""
        what = "" if isinstance(error, _Refused) else "this is not YAML: "
        raise FileFormatError(f"{path}{line}: {what}{str(error.problem)[:200]}.") from error
    except yaml.YAMLError as error:
        raise FileFormatError(f"{path}: this is not YAML: {error}") from error
    if not isinstance(data, dict):
        raise FileFormatError(f"{path}: expected 'key: value' lines, found {type(data).__name__}.")
    lines: dict[KeyPath, int] = {}
    faults = []
    # PyYAML keeps the last of two equal keys silently; one of them would be ignored.
    for key, number in _lines(node):
        if key in lines:
            faults.append(f"{path}:{number}: '{key[-1]}' is already on line {lines[key]}.")
        lines[key] = number
    if faults:
        raise FileFormatError("\n".join(faults))
    return YamlFile(path, data, lines)


def value_of(text: str) -> object:
    """Return what YAML reads in a text: a number, a truth value, a text, or something larger.

    Raises:
        yaml.YAMLError: It is not YAML.
    """
    return _parsed(text)[1]


def _parsed(text: str) -> tuple[yaml.Node | None, Any]:
    """Return a document's nodes, which have line numbers, and its data, which have types."""
    loader = _Loader(text)
    try:
        node = loader.get_single_node()
        return node, None if node is None else loader.construct_document(node)
    finally:
        loader.dispose()


def _lines(node: yaml.Node | None, above: KeyPath = ()) -> Iterator[tuple[KeyPath, int]]:
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        path = (*above, str(key.value))
        yield path, key.start_mark.line + 1
        yield from _lines(value, path)
