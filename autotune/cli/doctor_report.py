"""What ``autotune doctor`` does: look at the machine and at a program, and print what it found."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.padding import Padding
from rich.text import Text

from autotune.cli.stdout import print_json, results_console, table
from autotune.machine.conditions import Conditions
from autotune.machine.hardware import Hardware
from autotune.program.fence_options import STRONGEST
from autotune.results.advice import Advice, advise
from autotune.results.data.doctor import DoctorData, examined_part, machine_part
from autotune.results.doctor_report import DoctorReport
from autotune.results.wording import gib, measured_duration, percent, rate

if TYPE_CHECKING:
    from autotune.cli.console import Talk
    from autotune.program.fence_options import FenceOptions
    from autotune.program.program import Program

SMALL_GAIN = 1.02  # a gain that is at most this large is told as "hardly any"
SHAPES = "cudnn.benchmark times each anew, and torch.compile may compile each"
BAR = 30  # characters that a whole step is long
SIZES = (
    ("host memory", "host_bytes"),
    ("GPU memory allocated", "device_allocated_bytes"),
    ("GPU memory reserved", "device_reserved_bytes"),
    ("GPU memory of the program", "device_process_bytes"),
    ("GPU memory in use by all", "device_used_bytes"),
)


def examine(program: Program | None, console: Talk, fence: FenceOptions, *, as_json: bool) -> None:
    """Look at the machine, and at a program if there is one; print what was found on stdout."""
    from autotune.machine import conditions, hardware, preflight
    from autotune.rig.fence import describe_fence
    from autotune.tuning import examine as examining

    machine = hardware.detect(None if program is None else program.visible_devices)
    around, busy, kept = conditions.read(), preflight.warnings(machine), describe_fence(fence)
    if not as_json:
        _show_machine(machine, around, busy, *kept)
    report = None
    if program is not None:
        report = examining.examine(program, machine, console, fence)
        if not as_json:
            show_program(report)
    if as_json:
        found = DoctorData(
            machine=machine_part(machine, around, busy, kept[0]),
            program=None if report is None else examined_part(report),
        )
        print_json(found.as_json())


def show_report() -> None:
    """Print what a bug report needs of the machine, without names or paths of the user's."""
    from autotune.machine import conditions, hardware
    from autotune.rig.fence import describe_fence

    machine, around, out = hardware.detect(), conditions.read(), results_console()
    about = [("system", machine.system), *machine.versions.items()]
    out.print(table([*about, *_machine_rows(machine, around)]))
    sentence, uncovered = describe_fence(STRONGEST)
    for line in (sentence, *uncovered, *machine.warnings, *around.warnings):
        out.print(Text(line.replace(str(Path.home()), "~").replace(str(Path.cwd()), ".")))


def _show_machine(
    hardware: Hardware,
    conditions: Conditions,
    warnings: Sequence[str],
    fence: str,
    uncovered: Sequence[str],
) -> None:
    """Print what the machine is, what slows it down, and how files are protected from trials."""
    versions = ", ".join(f"{name} {version}" for name, version in hardware.versions.items())
    out = results_console()
    out.print(table([*_machine_rows(hardware, conditions), ("versions", versions)]))
    out.print(Text(fence))
    for warning in (*uncovered, *hardware.warnings, *conditions.warnings, *warnings):
        out.print(Text(warning, style="yellow"))
    if not warnings:
        out.print("The machine is quiet: other processes hardly use its CPU or GPUs.")


def _machine_rows(hardware: Hardware, conditions: Conditions) -> list[tuple[str, str]]:
    shm = "none" if hardware.shm_bytes is None else gib(hardware.shm_bytes)
    return [
        ("CPU", f"{hardware.cpu_name}, {hardware.cpu_quota} cores for this process"),
        *conditions.facts.items(),
        ("memory", f"{gib(hardware.memory_bytes)}, /dev/shm {shm}"),
        ("GPUs", ", ".join(gpu.name for gpu in hardware.gpus) or "none"),
    ]


def show_program(report: DoctorReport) -> None:
    """Print a program's figures, where its step goes, and the advice that follows from them."""
    out = results_console()
    out.print()
    out.print(Text(report.command, style="bold"))
    out.print(table(_figures(report)))
    if report.measurement.ranks:
        out.print("Where a step of each rank goes; communication includes waiting for other ranks")
        out.print(
            table(
                (
                    f"rank {load.rank}",
                    measured_duration(load.step_s),
                    f"data wait {measured_duration(load.wait_s)}",
                    "communication "
                    + (
                        "unknown"
                        if load.communication_s is None
                        else measured_duration(load.communication_s)
                    ),
                )
                for load in report.measurement.ranks
            )
        )
    if (split := report.breakdown.split) is not None:
        took = measured_duration(report.measurement.step_s)
        out.print(f"Where a step of {took} goes ({split.steps} steps)")
        out.print(table(_parts(report)))
        if split.launch_s is not None:
            took = measured_duration(split.launch_s / split.step_s * report.measurement.step_s)
            out.print(f"  the host needs {took} to launch compute and optimizer")
        out.print("What each part does alone")
        out.print(table(_alone(report)))
    for warning in report.warnings:
        out.print(Text(warning, style="yellow"))
    found = advise(report)
    if not found:
        limit = " in what could be looked at" if report.notes else ""
        out.print(f"[bold green]Nothing found[/]{limit} that is worth a change in the program.")
        out.print("autotune search looks for faster settings.")
    for number, advice in enumerate(found, 1):
        out.print()
        out.print(Text(f"{number}. {advice.problem}", style="bold"))
        out.print(Padding(table(_rows(advice), name_style="dim"), (0, 0, 0, 1), expand=False))
    for note in report.notes:
        out.print(Text(note, style="dim"))


def _figures(report: DoctorReport) -> Iterator[tuple[str, str]]:
    measured = report.measurement
    wait = f"waits for data {percent(measured.wait_share)} of the time"
    yield "throughput", f"{rate(measured.throughput)} samples/s, {wait}"
    if (tokens := measured.tokens_per_s) is not None:
        yield "", f"{rate(tokens)} tokens/s, padding included"
    for label, name in SIZES:
        if (size := getattr(measured.memory, name)) is not None:
            yield label, gib(size)
    if (joules := measured.joules_per_sample) is not None:
        yield "energy", f"{joules:.3g} J per sample"


def _parts(report: DoctorReport) -> Iterator[tuple[str, str, str, str]]:
    for name, seconds in report.parts_s.items():
        share = seconds / report.measurement.step_s
        yield name, measured_duration(seconds), f"{percent(share):>4}", "█" * round(BAR * share)


def _alone(report: DoctorReport) -> Iterator[tuple[str, str, str]]:
    """Yield what the parts of a step do without each other: name, figure, what that means."""
    breakdown, now = report.breakdown, report.measurement.throughput.estimate
    for name, found, most in (
        ("data always ready", breakdown.synthetic_data_throughput, report.data_gain),
        ("loader alone", breakdown.loader_throughput, None),
    ):
        if found is None:
            yield name, "unknown: needs exactly one DataLoader that trains", ""
            continue
        ratio = found.estimate / now if most is None else most
        if ratio <= SMALL_GAIN:
            means = "no faster than now"
        else:
            means = f"{'' if most is None else 'at most '}{ratio:.2f}x as fast as now"
        yield name, f"{rate(found)} samples/s", means
    if breakdown.flops_per_step is not None:
        flops_per_s, share = (
            breakdown.flops_per_step / report.measurement.step_s,
            report.roofline_share,
        )
        dtype = report.profile.arithmetic
        peak = "peak unknown here" if share is None else f"{percent(share)} of the {dtype} peak"
        yield "arithmetic", f"{flops_per_s / 1e9:,.1f} GFLOP/s", peak
    if (batches := breakdown.batches) is not None and batches.shapes > 1:
        yield "batches", f"{batches.shapes} shapes in {batches.count}", SHAPES


def _rows(advice: Advice) -> Iterator[tuple[str, str]]:
    gain = ""
    if advice.gain is not None:
        most, basis = advice.gain.most, advice.gain.basis
        gain = f"at most {most:.2f}x ({basis})" if most > SMALL_GAIN else f"hardly any ({basis})"
    rows = {"where": advice.where, "seen": advice.evidence, "gain": gain, "mend": advice.mend}
    return ((label, text) for label, text in rows.items() if text)
