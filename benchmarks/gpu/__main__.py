"""``python -m benchmarks.gpu``: what autotune does on a GPU, seen from outside.

See README.md beside this file.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.gpu import device
from benchmarks.gpu.bench import ROOT
from benchmarks.gpu.facts_check import FactsCheck
from benchmarks.gpu.findings import Record, counts, table
from benchmarks.gpu.listed import PROGRAMS
from benchmarks.gpu.orchestrator import Check, Ground, run_all
from benchmarks.gpu.program_check import ProgramCheck

# In the order of worth: the first three programs and the facts fit into one call of 480 s
CHECKS: tuple[Check, ...] = (
    *map(ProgramCheck, PROGRAMS[:3]),
    FactsCheck(),
    *map(ProgramCheck, PROGRAMS[3:]),
)
REHEARSAL_S = 720


def main(arguments: Sequence[str], checks: Sequence[Check] = CHECKS) -> int:
    """Run the checks that are asked for; return 1 if an assertion about autotune failed.

    After Ctrl-C, 130 is returned, unless the last check was running.
    """
    asked = _parsed(arguments, checks)
    wanted = set(asked.only or (c.name for c in checks)) - set(asked.skip)
    chosen = [c for c in checks if c.name in wanted]
    gpu = next(iter(device.query(device.FACTS)), {})
    today = datetime.datetime.now(datetime.UTC)
    kind = "rehearsal" if asked.rehearse else gpu.get("name", "cpu").replace(" ", "-").lower()
    if not (gpu or asked.rehearse):
        print("nvidia-smi tells of no GPU: --rehearse has sizes for a CPU.", file=sys.stderr)
    asked.out.mkdir(parents=True, exist_ok=True)
    file = asked.out / f"{today:%Y-%m-%d-%H%M%S}-gpu-{kind}.json"
    head = {
        "benchmark": "gpu",
        "date": today.isoformat(timespec="seconds"),
        "command": shlex.join(["python", "-m", "benchmarks.gpu", *arguments]),
        "commit": _commit(),
        "device": gpu,
    }

    def keep(records: Sequence[Record]) -> None:
        data = {**head, "checks": [record.as_data() for record in records]}
        part = file.with_suffix(".part")
        part.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
        part.replace(file)
        last = records[-1]
        print(f"{last.check}: {counts([last])}, {last.seconds:.0f} s", file=sys.stderr, flush=True)

    with tempfile.TemporaryDirectory(prefix="gpu-checks-") as folder:
        ground = Ground(tuple(shlex.split(asked.autotune)), asked.rehearse, Path(folder))
        try:
            records = run_all(chosen, ground, asked.seconds, keep)
        finally:
            _keep_logs(Path(folder), file.with_suffix(".log"))
    print("\n".join(table(records)))
    print(f"{counts(records)}; {gpu.get('name', 'no GPU')}; all figures: {file}")
    if len(records) < len(chosen):
        return 128 + signal.SIGINT
    return int(any(record.has_failed for record in records))


def _parsed(arguments: Sequence[str], checks: Sequence[Check]) -> argparse.Namespace:
    names = [check.name for check in checks]
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description="What autotune does on a GPU, from outside: see benchmarks/gpu/README.md.",
    )
    parser.add_argument("--out", type=Path, default=Path("gpu-results"), help="for the result file")
    parser.add_argument(
        "--seconds", type=float, help="for all checks together: 480, or 720 of a rehearsal"
    )
    parser.add_argument("--rehearse", action="store_true", help="tiny sizes on the CPU")
    parser.add_argument("--autotune", help="the command to judge, by default this checkout's")
    for option, what in (("--only", "run these"), ("--skip", "leave these out")):
        parser.add_argument(
            option,
            type=lambda text: _names(text, names),
            default=(),
            metavar="CHECK,CHECK",
            help=f"{what}: {', '.join(names)}",
        )
    asked = parser.parse_args(arguments)
    if not set(asked.only or names) - set(asked.skip):
        parser.error("--only and --skip leave no check")
    if asked.out.exists() and not asked.out.is_dir():
        parser.error(f"--out {asked.out} is a file; name a folder")
    if asked.autotune and shutil.which(shlex.split(asked.autotune)[0]) is None:
        parser.error(f"--autotune {asked.autotune} is no command")
    if asked.seconds is None:
        asked.seconds = REHEARSAL_S if asked.rehearse else 480.0
    asked.autotune = asked.autotune or shlex.join([sys.executable, "-m", "autotune"])
    return asked


def _names(text: str, names: Sequence[str]) -> tuple[str, ...]:
    wanted = tuple(name.strip() for name in text.split(","))
    if unknown := sorted(set(wanted) - set(names)):
        raise argparse.ArgumentTypeError(
            f"no check is called {', '.join(unknown)}; there are {', '.join(names)}"
        )
    return wanted


def _commit() -> str:
    command = ["git", "-C", str(ROOT), "describe", "--always", "--dirty", "--abbrev=12"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return "unknown"
    return answer.stdout.strip() or "unknown"


def _keep_logs(folder: Path, file: Path) -> None:
    """Put the logs of all checks into one file, as a lent machine gives few files back."""
    logs = sorted(folder.glob("*/log.txt"))
    texts = [f"==== {log.parent.name}\n{log.read_text(errors='replace')}" for log in logs]
    file.write_text("\n".join(texts), encoding="utf-8")


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # end what runs, as after Ctrl-C
    sys.exit(main(sys.argv[1:]))
