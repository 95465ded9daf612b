"""``python -m benchmarks.gpu``: what autotune does on a GPU, seen from outside and from inside.

See README.md beside this file. Nothing here imports torch: a CUDA context of ours would hold memory
of the GPU that is looked at.
"""

from __future__ import annotations

import argparse
import datetime
import json
import shlex
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from benchmarks.gpu.bench import (
    CONDITIONS,
    FACTS,
    FULL,
    TINY,
    Bench,
    Finding,
    OutOfTime,
    Status,
    first_gpu,
)
from benchmarks.gpu.checks import CHECKS, INSIDE, OF_PROGRAMS, Check
from benchmarks.processes import commit

INTERRUPTED = Finding(Status.SKIP, "the rest: interrupted")


@dataclass
class Record:
    """All that one check found.

    Attributes:
        seconds: How long the check took; 0 for one that was skipped.
        device_before: Clocks, temperature and memory of the GPU before the check; empty without.
        device_after: Those after it.
    """

    check: str
    seconds: float = 0.0
    findings: list[Finding] = field(default_factory=list)
    device_before: Mapping[str, str] = field(default_factory=dict)
    device_after: Mapping[str, str] = field(default_factory=dict)


def main(arguments: Sequence[str]) -> int:
    """Run the checks that are asked for; return 1 if an assertion about autotune failed.

    After Ctrl-C, 130 is returned. The result file is written anew after each check, so that a kill
    loses nothing.
    """
    asked = _parsed(arguments)
    gpu = first_gpu(FACTS)
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
        "commit": commit(),
        "device": gpu,
    }
    records: list[Record] = []
    with tempfile.TemporaryDirectory(prefix="gpu-checks-") as folder:
        try:
            for record in run_all(asked, Path(folder)):
                records.append(record)
                data = {**head, "checks": [asdict(one) for one in records]}
                part = file.with_suffix(".part")
                part.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
                part.replace(file)
                told = f"{record.check}: {counts([record])}, {record.seconds:.0f} s"
                print(told, file=sys.stderr, flush=True)
        finally:  # in one file, as a lent machine gives few files back
            logs = sorted(Path(folder).glob("*/log.txt"))
            texts = [f"==== {log.parent.name}\n{log.read_text(errors='replace')}" for log in logs]
            file.with_suffix(".log").write_text("\n".join(texts), encoding="utf-8")
    for record in records:
        for finding in record.findings:
            print(f"{record.check:<10} {finding.status} {finding.text}")
    print(f"{counts(records)}; {gpu.get('name', 'no GPU')}; all figures: {file}")
    if INTERRUPTED in records[-1].findings:
        return 128 + signal.SIGINT
    return int(any(f.status is Status.FAIL for record in records for f in record.findings))


def run_all(asked: argparse.Namespace, folder: Path) -> Iterator[Record]:
    """Yield the records of checks, one after the other; Ctrl-C ends them.

    A check is skipped where the seconds that it needs are not left.
    """
    until = time.monotonic() + asked.seconds
    for check in CHECKS.values():
        if check.name not in asked.only:
            continue
        left_s = max(0.0, until - time.monotonic())
        needed_s = check.needs_s(TINY if asked.rehearse else FULL)
        if left_s < needed_s:
            why = f"it needs {needed_s:.0f} s, {left_s:.0f} s are left"
            yield Record(check.name, findings=[Finding(Status.SKIP, why)])
            continue
        bench = Bench(folder / check.name, left_s, rehearsal=asked.rehearse)
        record = run_one(check, bench)
        yield record
        if INTERRUPTED in record.findings:
            return


def run_one(check: Check, bench: Bench) -> Record:
    """Run one check."""
    record, began = Record(check.name, device_before=first_gpu(CONDITIONS)), time.monotonic()
    try:
        for finding in check.found(bench):
            record.findings.append(finding)  # each counts, whatever ends the next
    except OutOfTime:
        record.findings.append(Finding(Status.SKIP, "the rest: its seconds have run out"))
    except KeyboardInterrupt:
        record.findings.append(INTERRUPTED)
    except Exception as error:  # noqa: BLE001 - whatever it is, the log tells it
        with bench.log.open("a", encoding="utf-8") as log:
            traceback.print_exc(file=log)
        record.findings.append(Finding(Status.FAIL, f"the check broke: {error!r}"[:300]))
    record.seconds, record.device_after = time.monotonic() - began, first_gpu(CONDITIONS)
    return record


def counts(records: Sequence[Record]) -> str:
    """Return how many findings ended in which way."""
    ended = Counter(finding.status for record in records for finding in record.findings)
    return ", ".join(f"{ended[status]} {status}" for status in Status)


def _parsed(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.gpu",
        description="What autotune does on a GPU: see benchmarks/gpu/README.md.",
    )
    parser.add_argument("--out", type=Path, default=Path("gpu-results"), help="for the result file")
    parser.add_argument("--seconds", type=float, default=480.0, help="for all checks together")
    parser.add_argument("--rehearse", action="store_true", help="tiny sizes on the CPU")
    parser.set_defaults(only=[check.name for check in OF_PROGRAMS])
    some, inside = parser.add_mutually_exclusive_group(), [check.name for check in INSIDE]
    text = f"what happens in a program's process: {', '.join(inside)}"
    some.add_argument("--inside", action="store_const", const=inside, dest="only", help=text)
    text = f"names with commas between: {', '.join(CHECKS)}"
    some.add_argument("--only", type=_names, metavar="NAMES", help=text)
    return parser.parse_args(arguments)


def _names(text: str) -> list[str]:
    names = text.split(",")
    if unknown := set(names) - CHECKS.keys():
        raise argparse.ArgumentTypeError(f"no check is called {', '.join(sorted(unknown))}")
    return names


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # end what runs, as after Ctrl-C
    sys.exit(main(sys.argv[1:]))
