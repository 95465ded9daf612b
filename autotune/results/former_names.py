"""Former names: what earlier versions called the keys of best.yaml.

Files outlive names. When a file is read, each former key is replaced by the present one, so an old
best.yaml still trains. Studies of an earlier format are not read any more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

FORMER_NAMES = {  # until 0.1, November 2026
    "own_autocast": "program_autocast",
    "own_scaler": "program_scaler",
    "own_knobs": "program_knobs",
    "doubts": "warnings",
}


# Keys of best.yaml, by the section that held them, whose figures no version writes any more
GONE = {
    "": ("evaluation", "whole_run"),
    "learning": ("largest_useful_step", "sums"),
    "speedup": ("raw",),
}


# Their keys are knobs, flags or variables: the user's names, not autotune's
OF_THE_USER = {"config", "baseline", "domains", "fixed", "flags", "env", "knobs", "guilty"}


def with_present_names(raw: Any) -> Any:
    """Return JSON or YAML data with every former key replaced by its present name.

    Keys of mappings are replaced at any depth, except among names that the user chose.
    """
    if isinstance(raw, dict):
        present = {FORMER_NAMES.get(key, key): value for key, value in raw.items()}
        return {
            key: value if key in OF_THE_USER else with_present_names(value)
            for key, value in present.items()
        }
    if isinstance(raw, list):
        return [with_present_names(part) for part in raw]
    return raw


def without_gone(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the content of a best.yaml without the keys that no version writes any more."""
    found = {key: value for key, value in data.items() if key not in GONE[""]}
    for section, keys in GONE.items():
        if isinstance(own := found.get(section), dict):
            found[section] = {key: value for key, value in own.items() if key not in keys}
    return found


def as_written(names: Sequence[str], written: Any) -> tuple[str, ...]:
    """Return the path of a key as a file has it, which may be of an earlier version.

    Args:
        names: The path by today's names.
        written: What the file holds.
    """
    former = {present: name for name, present in FORMER_NAMES.items()}
    found: list[str] = []
    for name in names:
        keys = written if isinstance(written, dict) else {}
        found.append(
            name if name in keys else next((k for k in keys if k == former.get(name)), name)
        )
        written = keys.get(found[-1])
    return tuple(found)
