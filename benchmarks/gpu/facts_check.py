"""The check of facts: what autotune says of the machine and of memory, beside what others say.

A program that holds 2 GiB tells whether a search sees the memory of the program as written; the
same program beside autotune tells whether ``autotune doctor`` sees a stranger on the GPU.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu import device
from benchmarks.gpu.answer import read
from benchmarks.gpu.bench import Bench
from benchmarks.gpu.findings import Finding, Status
from benchmarks.gpu.listed import FOLDER, Printed
from benchmarks.gpu.program_check import Sizes, judge_end, judge_left, judge_memory

HELD = 2 << 30
BUDGET_S, HIDDEN_BUDGET_S = 30, 20
# What the driver's own context takes beside the 2 GiB
CONTEXT = 3 << 29
STRANGER_S = 40.0
TORCH_FACTS = """
import json, torch
devices = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
print(json.dumps([{"name": d.name, "memory_bytes": d.total_memory,
                   "compute_capability": [d.major, d.minor]} for d in devices]))
"""


@dataclass(frozen=True)
class FactsCheck:
    """Facts of the device and figures of memory."""

    name: str = "facts"
    script: Path = FOLDER / "holds.py"

    def needs_s(self, sizes: Sizes) -> float:
        """Return the seconds without which the check is not begun."""
        return BUDGET_S + HIDDEN_BUDGET_S + 4 * sizes.start_s

    def run(self, bench: Bench) -> None:
        """Run the check."""
        for finding in self._found(bench):
            bench.notes.tell(finding.status, finding.text, **finding.figures)

    def _found(self, bench: Bench) -> Iterator[Finding]:
        holds = str(self.script)
        ran = bench.run([sys.executable, "-c", TORCH_FACTS], 60)
        by_torch = json.loads(ran.output) if ran.code == 0 else []
        gpus = _doctor(bench)["hardware"]["gpus"]
        yield judge_facts(gpus, by_torch, device.query(device.FACTS))
        bare = Printed.read(bench.run([sys.executable, holds, "--seconds", "1"], STRANGER_S).output)
        used_before = device.used_bytes()
        command = [*bench.autotune, "search", "--json", "--budget", f"{BUDGET_S}s", holds]
        ran = bench.run(command, 2.0 * BUDGET_S)
        yield judge_end(ran, BUDGET_S)
        yield from judge_left(bench, used_before)
        memory = read(ran.output).memory_bytes
        if bare.peak_bytes is None:
            host = bare.resident_bytes or 0
            yield judge_memory("host memory of 2 GiB", memory.get("host_bytes"), host, host, 0.2)
            yield Finding(Status.SKIP, "memory of a device: there is none here")
            yield Finding(Status.SKIP, "a stranger on the GPU: there is none here")
            yield Finding(Status.SKIP, "a GPU that the program hides: there is none here")
            return
        reserved = memory.get("device_reserved_bytes")
        yield judge_memory("reserved for 2 GiB", reserved, HELD, bare.peak_bytes, 0.1)
        by_driver = memory.get("device_process_bytes")
        yield judge_memory("by the driver, for 2 GiB", by_driver, HELD, HELD + CONTEXT)
        yield self._stranger(bench)
        yield self._hidden(bench)

    def _stranger(self, bench: Bench) -> Finding:
        """Return whether doctor warns of a process that holds the GPU's memory."""
        stranger = subprocess.Popen(
            [sys.executable, str(self.script), "--seconds", str(STRANGER_S)],
            stdout=subprocess.DEVNULL,
        )
        try:
            until = time.monotonic() + STRANGER_S / 2
            while (device.holders().get(stranger.pid) or 0) < HELD:
                if time.monotonic() > until:
                    text = "a stranger on the GPU: nvidia-smi does not list it by its id"
                    return Finding(Status.SKIP, text)
                time.sleep(0.5)
            return judge_warning(_doctor(bench)["warnings"], stranger.pid)
        finally:
            stranger.kill()
            stranger.wait()

    def _hidden(self, bench: Bench) -> Finding:
        """Return whether a script that hides the GPU at its first line trains on the CPU."""
        budget = f"{HIDDEN_BUDGET_S}s"
        line = [str(self.script), "--gpu", "", "--gib", "0.1"]
        ran = bench.run(
            [*bench.autotune, "search", "--json", "--budget", budget, *line], 3.0 * HIDDEN_BUDGET_S
        )
        trained_on = read(ran.output).device
        text = f"a script that hides the GPU trains on {trained_on}"
        return Finding(Status.PASS if trained_on == "cpu" else Status.FAIL, text)


def _doctor(bench: Bench) -> Mapping[str, Any]:
    """Return what doctor says of the machine."""
    ran = bench.run([*bench.autotune, "doctor", "--json"], 60)
    machine: Mapping[str, Any] = json.loads(ran.output)["machine"]
    return machine


def judge_facts(
    gpus: Sequence[Mapping[str, Any]],
    by_torch: Sequence[Mapping[str, Any]],
    by_driver: Sequence[Mapping[str, str]],
) -> Finding:
    """Return whether doctor's facts of the GPUs are torch's; total memory within 5 %."""
    figures = {"doctor": gpus, "torch": by_torch, "nvidia-smi": by_driver}
    if not by_torch:
        status = Status.FAIL if gpus else Status.SKIP
        return Finding(status, f"torch has no GPU here; doctor has {len(gpus)}", figures)
    same = len(gpus) == len(by_torch) and all(
        ours["name"] == theirs["name"]
        and list(ours["compute_capability"]) == list(theirs["compute_capability"])
        and abs(ours["memory_bytes"] / theirs["memory_bytes"] - 1) <= 0.05
        for ours, theirs in zip(gpus, by_torch, strict=True)
    )
    names = ", ".join(str(gpu["name"]) for gpu in by_torch)
    text = f"torch has {names}; doctor has {', '.join(str(g['name']) for g in gpus) or 'none'}"
    return Finding(Status.PASS if same else Status.FAIL, text, figures)


def judge_warning(warnings: list[str], pid: int) -> Finding:
    """Return whether one of doctor's warnings names a process."""
    names = any(str(pid) in warning for warning in warnings)
    text = f"a stranger holds 2 GiB; doctor {'names it' if names else 'does not name it'}"
    return Finding(Status.PASS if names else Status.FAIL, text, {"warnings": warnings})
