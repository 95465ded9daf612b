"""Parsing of option values on the command line: names, and ``name=value,value``.

The functions check the form only, and raise ``UsageError`` with the name of the option. Whether a
knob exists and takes the value is checked by ``SearchSpace``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from autotune.errors import UsageError

VARIABLE = "env:"  # before the name of an environment variable
MIN_SCRATCH_BYTES = 1 << 20


def names(texts: Sequence[str], _option: str = "") -> list[str]:
    """Return the names in texts such as ``a,b``, without blanks and empty entries."""
    return [name.strip() for text in texts for name in text.split(",") if name.strip()]


def chosen(pairs: Sequence[str], option: str) -> dict[str, list[object]]:
    """Return a list of values per name from ``name=value,value`` texts, with YAML's types.

    Values of the program's flags and of environment variables stay text: ``--lr=1e-4`` must reach
    the program as typed, not as the number that YAML makes of it.
    """
    found: dict[str, list[object]] = {}
    for name, text in _pairs(pairs, option):
        is_text = name.startswith(("-", VARIABLE))
        found[name] = [part if is_text else _scalar(part) for part in text.split(",")]
    return found


def size_bytes(text: str, option: str) -> int:
    """Return the number of bytes in ``500M`` or ``20G``; units are powers of 1024.

    Raises:
        UsageError: The text is not a size, or the size is less than 1 MiB.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?", text.strip(), re.IGNORECASE)
    if match is None:
        raise UsageError(f"{option} takes a size such as 500M or 20G, not '{text}'.")
    size = int(float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " "))
    if size < MIN_SCRATCH_BYTES:
        raise UsageError(f"{option} {text} is too little for a program to write. Give 1M or more.")
    return size


def _pairs(typed: Sequence[str], option: str) -> list[tuple[str, str]]:
    pairs = []
    for text in typed:
        knob, equals, value = text.partition("=")
        if not equals or not value:
            raise UsageError(f"{option} takes NAME=VALUE or NAME=VALUE,VALUE, not '{text}'.")
        pairs.append((knob.strip(), value))
    return pairs


def _scalar(text: str) -> object:
    """Return a value with the type that YAML gives it: number, boolean or text."""
    # YAML's rules, so that an option takes a value as a search space file does.
    import yaml

    from autotune.knobs.space import yamlfile

    try:
        return yamlfile.value_of(text)
    except yaml.YAMLError as error:
        raise UsageError(
            f"'{text}' is not a value: write a number, true, false or a name."
        ) from error
