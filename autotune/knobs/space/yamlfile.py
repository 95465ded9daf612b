"""Reading of YAML files that people edit, with the line of each key.

Messages about a file need the line, which ``yaml.safe_load`` does not give.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from autotune.errors import FileFormatError

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


def read(path: Path) -> YamlFile:
    """Return the content of a YAML file.

    Raises:
        FileFormatError: It cannot be read, is not a YAML mapping, or contains a key twice.
    """
    try:
        # The text is parsed twice: the nodes have line numbers, the data has Python's types.
        text = path.read_text(encoding="utf-8")
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        data = yaml.safe_load(text)
    except FileNotFoundError as error:
        raise FileFormatError(f"There is no file '{path}'.") from error
    except (OSError, UnicodeDecodeError) as error:
        raise FileFormatError(f"'{path}' cannot be read: {error}") from error
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        line = f":{mark.line + 1}" if mark else ""
        raise FileFormatError(f"{path}{line}: this is not YAML: {error.problem}") from error
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


def _lines(node: yaml.Node | None, above: KeyPath = ()) -> Iterator[tuple[KeyPath, int]]:
    if not isinstance(node, yaml.MappingNode):
        return
    for key, value in node.value:
        path = (*above, str(key.value))
        yield path, key.start_mark.line + 1
        yield from _lines(value, path)
