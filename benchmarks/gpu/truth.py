"""Runs one script several times in one process, each time with other flags: its own truth.

A process that has loaded torch needs no second start, so a truth by turns costs seconds. Prints one
line of JSON per run: the flags, and the rate that the script printed, or how it failed.

    python -m benchmarks.gpu.truth SCRIPT '[["--seconds", "1"], ["--seconds", "1", "--bf16"]]'
"""

from __future__ import annotations

import gc
import io
import json
import runpy
import sys
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from benchmarks.gpu.listed import Printed


def rate(script: Path, flags: Sequence[str]) -> float | str:
    """Return the samples per second of one run, or the error that ended it."""
    sys.argv = [str(script), *flags]
    printed = io.StringIO()
    try:
        with redirect_stdout(printed):
            runpy.run_path(str(script), run_name="__main__")
    except Exception as error:  # noqa: BLE001 - a script may fail in any way
        return f"{type(error).__name__}: {error}".splitlines()[0]
    finally:
        gc.collect()
        torch = sys.modules.get("torch")
        if torch is not None and torch.cuda.is_initialized():
            torch.cuda.empty_cache()
    return Printed.read(printed.getvalue()).samples_per_s or "it printed no rate"


def main(script: str, runs: Sequence[Sequence[str]]) -> None:
    """Run the script once for each list of flags."""
    sys.path.insert(0, str(Path(script).parent))
    for flags in runs:
        found: dict[str, Any] = {"flags": flags, "rate": rate(Path(script), flags)}
        print(json.dumps(found), flush=True)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
