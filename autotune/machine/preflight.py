"""Pre-flight check: whether this machine is quiet enough to measure on, and who is busy on it.

And whether this process has the cores that it could have.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from time import monotonic, sleep

import psutil

from autotune.machine import fewer_cores
from autotune.machine.hardware import Hardware
from autotune.machine.probes.nvml import GpuWatch
from autotune.machine.process_tree import tree

LOOK_S = 0.5
BUSY_SHARE = 0.10  # of all cores: from here on the user is warned
NAMED_SHARE = 0.05  # of one core: processes that use less are not named in the warning
MAX_NAMED = 3


def warnings(hardware: Hardware, look_s: float = LOOK_S) -> list[str]:
    """Return what would disturb a measurement now, as sentences for the user."""
    few = fewer_cores.read().warning(len(hardware.gpus))
    return [*filter(None, [few]), *_cpu_warnings(hardware, look_s), *_gpu_warnings(hardware)]


def _cpu_warnings(hardware: Hardware, look_s: float) -> Iterator[str]:
    before, began = _cpu_seconds(), monotonic()
    sleep(look_s)
    after, elapsed_s = _cpu_seconds(), monotonic() - began
    # Processes that started or ended in between have only one reading.
    used = {pid: (after[pid] - before[pid]) / elapsed_s for pid in after.keys() & before.keys()}
    busy = min(sum(used.values()), hardware.cpu_quota)  # readings overlap
    if busy < BUSY_SHARE * hardware.cpu_quota:
        return
    busiest = sorted(used, key=lambda pid: used[pid], reverse=True)[:MAX_NAMED]
    named = [
        f"{_name(pid)} {used[pid]:.1f} of a core" for pid in busiest if used[pid] > NAMED_SHARE
    ]
    cores = "core" if hardware.cpu_quota == 1 else f"{hardware.cpu_quota} cores"
    yield (
        f"The machine is busy: other processes use {busy:.1f} of its {cores} "
        f"({', '.join(named) or 'many small ones'}). Results will be less certain; end them if "
        "you can."
    )


def _gpu_warnings(hardware: Hardware) -> Iterator[str]:
    watch = GpuWatch(tuple(gpu.uuid for gpu in hardware.gpus), pid=None)
    watch.sample(monotonic())
    strangers = watch.strangers()
    names = {gpu.uuid: gpu.name for gpu in hardware.gpus}
    for reading in watch.readings:
        gpu = names[reading.uuid]
        # An idle process is named, too: it takes memory from the configs that are tried. One that
        # draws is named only where it takes the GPU's time.
        held = dict.fromkeys(reading.foreign_processes) | strangers.get(reading.uuid, {})
        if held:
            users = ", ".join(
                _name(pid) + ("" if size is None else f" with {size / 2**30:.1f} GiB")
                for pid, size in held.items()
            )
            yield (
                f"Other processes use {gpu}: {users}. Results will be less certain; end them if "
                "you can."
            )
        for reason in reading.slowdowns:
            yield f"{gpu} is slowed down now ({reason}, {reading.temperature_c} degrees Celsius)."


def _cpu_seconds() -> Mapping[int, float]:
    """Return the CPU seconds of every process except autotune's own process tree, by process id."""
    own = {process.pid for process in tree(os.getpid())}
    return {
        process.pid: times.user + times.system
        for process in psutil.process_iter(["cpu_times"])
        if process.pid not in own and (times := process.info["cpu_times"]) is not None
    }


def _name(pid: int) -> str:
    try:
        return f"{psutil.Process(pid).name()} (process {pid})"
    except psutil.Error:
        return f"process {pid}"
