"""What ``autotune doctor`` does: look at the machine and at a program, and print what it found."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from autotune.cli.console import results_console
from autotune.machine.conditions import Conditions
from autotune.machine.hardware import Hardware
from autotune.results.advice import Advice
from autotune.results.doctor_report import DoctorReport
from autotune.results.wording import gib, rate

if TYPE_CHECKING:
    from autotune.cli.console import Console as Searching
    from autotune.program.fence_options import FenceOptions
    from autotune.program.program import Program

SMALL_GAIN = 1.02  # a gain that is at most this large is told as "hardly any"


def examine(
    program: Program | None,
    noise_budget_s: float | None,
    console: Searching,
    fence: FenceOptions,
    *,
    as_json: bool,
) -> None:
    """Look at the machine, and at a program if there is one; print what was found on stdout.

    Args:
        program: The program; None looks at the machine alone.
        noise_budget_s: Wall time in which the program is compared with itself, instead of being
            examined; None examines it.
        console: Told what happens.
        fence: What the user requested of the fence.
        as_json: Print data instead of text.
    """
    from autotune.cli import fact_sheet
    from autotune.machine import conditions, hardware, preflight
    from autotune.rig.fence import describe_fence
    from autotune.tuning import examine as examining
    from autotune.tuning.noise_floor import measure_noise_floor

    machine = hardware.detect(None if program is None else program.visible_devices)
    around, busy, kept = conditions.read(), preflight.warnings(machine), describe_fence(fence)
    found: dict[str, object] = {"machine": machine_data(machine, around, busy, kept[0])}
    if not as_json:
        _show_machine(machine, around, busy, *kept)
    if program is not None and noise_budget_s is not None:
        floor = measure_noise_floor(program, machine, noise_budget_s, console, fence)
        found["noise"] = asdict(floor)
        if not as_json:
            fact_sheet.show_noise_floor(floor)
    elif program is not None:
        report = examining.examine(program, machine, console, fence)
        found["program"] = report.as_data()
        if not as_json:
            _show_report(report)
    if as_json:
        sys.stdout.write(f"{json.dumps(found, indent=1, default=str)}\n")


def _show_machine(
    hardware: Hardware,
    conditions: Conditions,
    warnings: Sequence[str],
    fence: str,
    uncovered: Sequence[str],
) -> None:
    """Print what the machine is, what slows it down, and how files are protected from trials.

    Args:
        hardware: The machine.
        conditions: Quotas, clocks and the like.
        warnings: What else is busy on it, as sentences; empty if it is quiet.
        fence: What keeps trials from changing files, as a sentence.
        uncovered: What the fence does not cover, as sentences.
    """
    out = results_console()
    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 2))
    table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for name, value in _machine_rows(hardware, conditions):
        table.add_row(name, Text(value))
    out.print(table)
    out.print(Text(fence))
    for warning in (*uncovered, *hardware.warnings, *conditions.warnings, *warnings):
        out.print(Text(warning, style="yellow"))
    if not warnings:
        out.print("The machine is quiet: other processes hardly use its CPU or GPUs.")


def machine_data(
    hardware: Hardware, conditions: Conditions, warnings: Sequence[str], fence: str
) -> dict[str, Any]:
    """Return the machine as data that JSON can hold, with stable keys."""
    return {
        "hardware": asdict(hardware),
        "conditions": asdict(conditions),
        "warnings": [*hardware.warnings, *conditions.warnings, *warnings],
        "fence": fence,
    }


def _show_report(report: DoctorReport) -> None:
    """Print a program's figures and the advice that follows from them."""
    out = results_console()
    readings = report.readings
    out.print()
    out.print(Text(report.command, style="bold"))
    wait = f", {readings.measurement.wait_share:.0%} of the time waiting for data"
    out.print(f"  {rate(readings.measurement.throughput)} samples/s{wait}", markup=False)
    if not report.advice:
        limit = " in what could be looked at" if report.notes else ""
        out.print(f"[bold green]Nothing found[/]{limit} that is worth a change in the program.")
        out.print("autotune search looks for faster settings.")
    for number, advice in enumerate(report.advice, 1):
        _show_advice(out, number, advice)
    for note in report.notes:
        out.print(Text(note, style="dim"))


def _show_advice(out: Console, number: int, advice: Advice) -> None:
    out.print()
    out.print(Text.assemble((f"{number}. {advice.problem}", "bold")))
    for label, text in (
        ("where", advice.where),
        ("seen", advice.evidence),
        ("gain", _gain(advice)),
        ("mend", advice.mend),
    ):
        if text:
            line = Table.grid(padding=(0, 1, 0, 0))
            line.add_column(style="dim", width=6)
            line.add_column(overflow="fold")
            line.add_row(label, Text(text))
            out.print(Padding(line, (0, 0, 0, 3), expand=False))


def _gain(advice: Advice) -> str:
    if advice.gain is None:
        return ""
    most, basis = advice.gain.most, advice.gain.basis
    return f"at most {most:.2f}x ({basis})" if most > SMALL_GAIN else f"hardly any ({basis})"


def _machine_rows(hardware: Hardware, conditions: Conditions) -> list[tuple[str, str]]:
    gpus = ", ".join(gpu.name for gpu in hardware.gpus) or "none"
    versions = ", ".join(f"{name} {version}" for name, version in hardware.versions.items())
    shm = "none" if hardware.shm_bytes is None else gib(hardware.shm_bytes)
    return [
        ("CPU", f"{hardware.cpu_name}, {hardware.cpu_quota} cores for this process"),
        *conditions.facts.items(),
        ("memory", f"{gib(hardware.memory_bytes)}, /dev/shm {shm}"),
        ("GPUs", gpus),
        ("versions", versions),
    ]
