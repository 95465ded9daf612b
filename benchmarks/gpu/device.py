"""The GPU as ``nvidia-smi`` tells it, without torch and without autotune; nothing is set or reset.

Source: ``nvidia-smi --help-query-gpu`` and ``--help-query-compute-apps``.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Mapping

CONDITIONS = ("clocks.sm", "temperature.gpu", "power.draw", "memory.used", "utilization.gpu")
FACTS = ("name", "uuid", "driver_version", "memory.total", "compute_cap", "mig.mode.current")


def query(fields: tuple[str, ...], what: str = "gpu") -> list[Mapping[str, str]]:
    """Return a row for each GPU, or each process on one; empty without a driver."""
    if shutil.which("nvidia-smi") is None:
        return []
    command = ["nvidia-smi", f"--query-{what}={','.join(fields)}", "--format=csv,noheader,nounits"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (subprocess.CalledProcessError, subprocess.TimeoutExpired):
        return []
    rows = [[cell.strip() for cell in line.split(",")] for line in answer.stdout.splitlines()]
    return [dict(zip(fields, row, strict=True)) for row in rows if len(row) == len(fields)]


def first(fields: tuple[str, ...]) -> Mapping[str, str]:
    """Return what the first GPU tells; empty without one."""
    return next(iter(query(fields)), {})


def used_bytes() -> int | None:
    """Return the memory in use on all GPUs; None where the driver does not tell."""
    told = [_bytes(row["memory.used"]) for row in query(("memory.used",))]
    known = [size for size in told if size is not None]
    return sum(known) if known and len(known) == len(told) else None


def holders() -> Mapping[int, int | None]:
    """Return the bytes that each process holds on a GPU, by pid; None where it is not told."""
    rows = query(("pid", "used_memory"), "compute-apps")
    return {int(row["pid"]): _bytes(row["used_memory"]) for row in rows}


def _bytes(mebibytes: str) -> int | None:
    """Return a size; None for words such as ``[N/A]``."""
    return int(mebibytes) << 20 if mebibytes.isdigit() else None
