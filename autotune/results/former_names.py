"""Former names: what earlier versions called the fields of recorded studies and of best.yaml.

Files outlive names. When a file is read, each former key is replaced by the present one. So a
search that was stopped before an upgrade can be resumed after it, and an old best.yaml still
trains.
"""

from __future__ import annotations

from typing import Any

FORMER_NAMES = {  # until 0.1, November 2026
    "own_autocast": "program_autocast",
    "own_scaler": "program_scaler",
    "own_checkpointing": "program_checkpointing",
    "own_compile": "program_compile",
    "own_knobs": "program_knobs",
    "anatomy": "breakdown",
    "data_free": "synthetic_data_throughput",
    "compute_free": "loader_throughput",
    "demanded": "requested",
    "doubts": "warnings",
}


def with_present_names(raw: Any) -> Any:
    """Return JSON or YAML data with every former key replaced by its present name.

    Keys of mappings are replaced at any depth; values and unknown keys stay as they are.
    """
    if isinstance(raw, dict):
        return {FORMER_NAMES.get(key, key): with_present_names(raw[key]) for key in raw}
    if isinstance(raw, list):
        return [with_present_names(part) for part in raw]
    return raw
