"""What is typed after an option of ours: names, knob=value, knob=value,value."""

from __future__ import annotations

from collections.abc import Sequence

from autotune.errors import UsageError


def names(text: str) -> list[str]:
    """Return the names in ``a,b``."""
    return [name.strip() for name in text.split(",") if name.strip()]


def settings(pairs: Sequence[str], option: str) -> dict[str, object]:
    """Return one value per knob, read as YAML would.

    Raises:
        UsageError: for what is no knob=value.
    """
    return {knob: _scalar(text) for knob, text in _pairs(pairs, option)}


def values(pairs: Sequence[str], option: str) -> dict[str, list[object]]:
    """Return several values per knob, read as YAML would."""
    return {knob: _scalars(text) for knob, text in _pairs(pairs, option)}


def own_values(pairs: Sequence[str], option: str) -> dict[str, list[object]]:
    """Return values of flags as they are written, of a function's keywords as Python has them."""
    return {
        name: list(text.split(",")) if name.startswith("-") else _scalars(text)
        for name, text in _pairs(pairs, option)
    }


def texts(pairs: Sequence[str], option: str) -> dict[str, list[str]]:
    """Return several values per name, as they are written."""
    return {name: text.split(",") for name, text in _pairs(pairs, option)}


def _pairs(typed: Sequence[str], option: str) -> list[tuple[str, str]]:
    pairs = []
    for text in typed:
        knob, equals, value = text.partition("=")
        if not equals or not value:
            raise UsageError(f"{option} takes knob=value, not '{text}'.")
        pairs.append((knob.strip(), value))
    return pairs


def _scalars(text: str) -> list[object]:
    return [_scalar(part) for part in text.split(",")]


def _scalar(text: str) -> object:
    """Read a value as YAML would: numbers, booleans, names."""
    import yaml

    try:
        value: object = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise UsageError(f"'{text}' is no value: write a number, true, false or a name.") from error
    return value
