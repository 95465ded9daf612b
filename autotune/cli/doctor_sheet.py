"""Print what ``autotune doctor`` found, on stdout: the machine, and advice on a program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.console import Console
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from autotune.machine.conditions import Conditions
from autotune.machine.hardware import Hardware
from autotune.results.advice import Advice
from autotune.results.doctor_report import DoctorReport
from autotune.results.wording import gib, rate

SMALL_GAIN = 1.02  # a gain that is at most this large is told as "hardly any"


def show_machine(
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
    out = _console()
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


def show_report(report: DoctorReport) -> None:
    """Print a program's figures and the advice that follows from them."""
    out = _console()
    readings = report.readings
    out.print()
    out.print(Text(report.command, style="bold"))
    wait = f", {readings.measurement.wait_share:.0%} of the time waiting for data"
    out.print(f"  {rate(readings.measurement.throughput)} samples/s{wait}", markup=False)
    if not report.advice:
        out.print("[bold green]Nothing found[/] that is worth a change in the program.")
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
            out.print(Padding(line, (0, 0, 0, 3)))


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


def _console() -> Console:
    return Console(highlight=False)
