"""The check of facts: what autotune says of the machine and of memory, beside what others say.

A program that holds 2 GiB tells whether a search sees the memory of the program as written; the
same program beside autotune tells whether ``autotune doctor`` sees a stranger on the GPU.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpu import device
from benchmarks.gpu.answer import read
from benchmarks.gpu.bench import Bench, Finding, Sizes, Status, verdict
from benchmarks.gpu.listed import FOLDER, Printed
from benchmarks.gpu.program_check import judge_memory, searched

HELD = 2 << 30
CONTEXT = 3 << 29  # most that the driver's own context takes beside it
BUDGET_S, HIDDEN_BUDGET_S = 20, 15
STRANGER_S = 30.0
LISTED_WITHIN_S = 15.0
TORCH_FACTS = """
import json, torch
devices = [torch.cuda.get_device_properties(i) for i in range(torch.cuda.device_count())]
gpus = [{"name": d.name, "memory_bytes": d.total_memory,
         "compute_capability": [d.major, d.minor]} for d in devices]
print(json.dumps({"gpus": gpus, "torch": torch.__version__, "cuda": torch.version.cuda,
                  "cudnn": torch.backends.cudnn.version()}))
"""
NO_GPU = Finding(Status.SKIP, "a stranger on the GPU: there is none here")
Facts = Mapping[str, Any]


@dataclass(frozen=True)
class FactsCheck:
    """Facts of the device and figures of memory."""

    name: str = "facts"
    script: Path = FOLDER / "holds.py"

    def needs_s(self, sizes: Sizes) -> float:
        """Return the seconds without which the check is not begun."""
        return BUDGET_S + HIDDEN_BUDGET_S + 6 * sizes.start_s

    def found(self, bench: Bench) -> Iterator[Finding]:
        """Yield what is found, as soon as it is."""
        torch = json.loads(bench.run([sys.executable, "-c", TORCH_FACTS], 60).output)
        gpus = _doctor(bench)["hardware"]["gpus"]
        yield judge_facts(gpus, torch, device.query(device.FACTS) if torch["gpus"] else [])
        listed, stranger = self._stranger(bench) if torch["gpus"] else (False, NO_GPU)
        yield stranger
        ran = bench.run([sys.executable, str(self.script), "--seconds", "1"], 60)
        held = yield from searched(bench, [str(self.script)], BUDGET_S)
        memory, bare = read(held.output).memory_bytes, Printed.read(ran.output)
        yield from judge_held_memory(memory, bare, is_listed=listed)
        line = [str(self.script), "--gpu", "", "--gib", "0.1"]  # it hides the GPU at its first line
        hidden = yield from searched(bench, line, HIDDEN_BUDGET_S)
        trained_on = read(hidden.output).device
        text = f"a script that hides the GPU trains on {trained_on}"
        yield verdict(text, holds=trained_on == "cpu")

    def _stranger(self, bench: Bench) -> tuple[bool, Finding]:
        """Return whether the driver lists processes by our ids, and whether doctor warns of one."""
        command = [sys.executable, str(self.script), "--seconds", str(STRANGER_S)]
        stranger = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=bench.env)
        try:
            until = time.monotonic() + LISTED_WITHIN_S
            while (device.holders().get(stranger.pid) or 0) < HELD:
                if time.monotonic() > until:
                    text = "a stranger on the GPU: nvidia-smi does not list it by its id"
                    return False, Finding(Status.SKIP, text)
                time.sleep(0.5)
            return True, judge_warning(_doctor(bench)["warnings"], stranger.pid)
        finally:
            stranger.kill()
            stranger.wait()


def _doctor(bench: Bench) -> Facts:
    """Return what doctor says of the machine."""
    ran = bench.run([*bench.autotune, "doctor", "--json"], 60)
    machine: Facts = json.loads(ran.output)["machine"]
    return machine


def judge_facts(gpus: Sequence[Facts], torch: Facts, by_driver: Sequence[Facts]) -> Finding:
    """Return whether doctor's facts of the GPUs are torch's and nvidia-smi's.

    What doctor does not know is no fault. Memory has to agree within 5 %: torch leaves out what the
    driver keeps to itself.
    """
    theirs = torch["gpus"]
    named = [", ".join(gpu["name"] for gpu in some) or "none" for some in (theirs, gpus, by_driver)]
    text = f"torch {torch['torch']} has {named[0]}; doctor has {named[1]}, nvidia-smi {named[2]}"
    figures = {"doctor": gpus, "torch": torch, "nvidia-smi": by_driver}
    if not theirs:
        return Finding(Status.FAIL if gpus else Status.SKIP, f"no GPU here: {text}", figures)
    same = len(gpus) == len(theirs) and all(map(_agree, gpus, theirs))
    if same and len(by_driver) == len(gpus):
        same = all(
            _agree(ours, {"name": row["name"], "memory_bytes": int(row["memory.total"]) << 20})
            for ours, row in zip(gpus, by_driver, strict=True)
            if row["memory.total"].isdigit()
        )
    return verdict(text, figures, holds=same)


def _agree(ours: Facts, theirs: Facts) -> bool:
    capability = ours["compute_capability"]
    memory, real = ours["memory_bytes"], theirs["memory_bytes"]
    return (
        ours["name"] == theirs["name"]
        and (memory is None or abs(memory / real - 1) <= 0.05)
        and (capability is None or list(capability) == theirs.get("compute_capability", capability))
    )


def judge_warning(warnings: Sequence[str], pid: int) -> Finding:
    """Return whether one of doctor's warnings names a process."""
    names = any(re.search(rf"process {pid}\b", warning) for warning in warnings)
    text = f"a stranger holds 2 GiB; doctor {'names it' if names else 'does not name it'}"
    return verdict(text, {"warnings": list(warnings)}, holds=names)


def judge_held_memory(
    memory: Mapping[str, int], bare: Printed, *, is_listed: bool
) -> Iterator[Finding]:
    """Yield whether a search saw 2 GiB: on the host, or on the GPU by torch and by the driver.

    Args:
        memory: Of the program as written, as the search has it.
        bare: What the program prints without autotune.
        is_listed: Whether the driver lists processes by the ids that they have here.
    """
    if bare.peak_bytes is None:
        host = bare.resident_bytes or 0
        yield judge_memory("host memory of 2 GiB", memory.get("host_bytes"), host, host, 0.2)
        yield Finding(Status.SKIP, "memory of a GPU: there is none here")
        return
    reserved = memory.get("device_reserved_bytes")
    yield judge_memory("reserved for 2 GiB", reserved, HELD, bare.peak_bytes, 0.1)
    by_driver = memory.get("device_process_bytes")
    if by_driver is None and not is_listed:
        yield Finding(Status.SKIP, "by the driver, for 2 GiB: it does not list ids of this machine")
    else:
        yield judge_memory("by the driver, for 2 GiB", by_driver, HELD, HELD + CONTEXT)
