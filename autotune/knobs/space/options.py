"""What is typed after an option of ours: names, knob=value, knob=value,value."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from autotune.errors import UsageError
from autotune.program.fence_options import FenceKind, FenceOptions

MIN_SCRATCH_BYTES = 1 << 20


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


def size_bytes(text: str, option: str) -> int:
    """Return bytes from ``500M`` or ``20G``, in powers of 1024.

    Raises:
        UsageError: when the text is no size.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([KMGT]?)i?B?", text.strip(), re.IGNORECASE)
    if match is None:
        raise UsageError(f"{option} takes a size such as 500M or 20G, not '{text}'.")
    size = int(float(match[1]) * 1024 ** " KMGT".index(match[2].upper() or " "))
    if size < MIN_SCRATCH_BYTES:
        raise UsageError(f"{option} {text} lets a program write nothing. Give 1M or more.")
    return size


def fence(
    kind: str | None,
    scratch_dir: Path | None,
    max_scratch: str | None,
    cache_dir: Sequence[Path] | None,
    *,
    allow_side_effects: bool,
) -> FenceOptions:
    """Return what the options of a command say of the fence.

    Raises:
        UsageError: when there is no such fence, size or folder.
    """
    if kind is not None and kind not in list(FenceKind):
        raise UsageError(f"There is no fence '{kind}'. Fences are: {', '.join(FenceKind)}.")
    if scratch_dir is not None and not scratch_dir.is_dir():
        raise UsageError(f"--scratch-dir '{scratch_dir}' is no folder. Make it first.")
    if kind == FenceKind.GUARD and not allow_side_effects:
        raise UsageError("--fence guard covers Python alone: it needs --allow-side-effects.")
    return FenceOptions(
        kind=None if kind is None else FenceKind(kind),
        scratch_dir=scratch_dir,
        max_scratch_bytes=None if max_scratch is None else size_bytes(max_scratch, "--max-scratch"),
        caches=tuple(cache_dir or ()),
        allow_side_effects=allow_side_effects,
    )


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
