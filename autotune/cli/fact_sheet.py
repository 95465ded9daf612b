"""Print what ``autotune measure``, ``compare`` and ``doctor --aa`` found, on stdout."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence

from pydantic import TypeAdapter
from rich.console import Console, RenderableType
from rich.table import Table

from autotune.cli.console import results_console
from autotune.cli.messages import plain
from autotune.measurement.interval import Interval
from autotune.measurement.memory import Memory
from autotune.measurement.rank_load import RankLoad
from autotune.results.measure_report import MeasureReport
from autotune.results.wording import gib, rate
from autotune.tuning.noise_floor import NoiseFloor

BAR = 30
SIZES = (
    ("host memory", "host_bytes"),
    ("GPU memory allocated", "device_allocated_bytes"),
    ("GPU memory reserved", "device_reserved_bytes"),
    ("GPU memory of the program", "device_process_bytes"),
    ("GPU memory in use by all", "device_used_bytes"),
)


def show(facts: MeasureReport) -> None:
    """Print the report on one measured config."""
    out = results_console()
    out.print()
    out.print(f"[bold]{plain(facts.command)}[/]")
    for part in (_figures(facts), *_split(facts), *_ceilings(facts)):
        out.print(part)
    if facts.warnings:
        out.print("Doubts")
        for warning in facts.warnings:
            out.print(f"  [yellow]{plain(warning)}[/]")


def as_json(facts: MeasureReport) -> str:
    """Return a report with its derived figures as JSON; times in seconds, sizes in bytes."""
    data = TypeAdapter(MeasureReport).dump_python(facts, mode="json")
    throughput, tokens = facts.throughput, facts.tokens_per_s
    first = facts.measurements[0]
    derived = {
        "config": dict(facts.config),
        "throughput": vars(throughput),
        "tokens_per_s": None if tokens is None else vars(tokens),
        "step_s": facts.step_s,
        "joules_per_sample": first.joules_per_sample,
        "split": facts.breakdown.split.parts if facts.breakdown.split else None,
        "roofline_share": facts.roofline_share,
        "warnings": list(facts.warnings),
    }
    return json.dumps({**data, **derived}, indent=2)


QUIET_ENOUGH = 1.2  # a machine that cannot tell this speedup from noise hardly helps a search


def show_noise_floor(floor: NoiseFloor) -> None:
    """Print how small a gain can be told from noise on this machine."""
    out = Console(highlight=False, soft_wrap=True)
    ratio = floor.ratio
    least = max(ratio.high / ratio.estimate, ratio.estimate / ratio.low)
    out.print(
        f"[bold]The program against itself: {floor.ratio.estimate:.3f}x[/] "
        rf"\[{floor.ratio.low:.3f}, {floor.ratio.high:.3f}], {floor.processes} fresh processes"
    )
    out.print(f"  within a process, turns tell the ratio to {floor.error_pct:.1f} % (1 se)")
    if floor.processes_spread_pct is not None:
        out.print(f"  ratios of processes differ by {floor.processes_spread_pct:.1f} % (1 sd)")
    out.print(f"  speedups below about {least:.2f}x cannot be told from noise in this time")
    if least > QUIET_ENOUGH:
        out.print(
            "  [yellow]Most knobs gain less. Close other programs, or give searches more time.[/]"
        )
    if floor.claims_a_difference:
        out.print(
            "  [yellow]The interval excludes 1 although the configs are equal. That happens once "
            "in twenty; if it happens again, the machine is too uneven to trust.[/]"
        )


def _figures(facts: MeasureReport) -> RenderableType:
    table = _table()
    table.add_row("throughput", f"{_rate(facts.throughput)} samples/s, {_source(facts)}")
    if (tokens := facts.tokens_per_s) is not None:
        table.add_row("", f"{_rate(tokens)} tokens/s, padding included")
    memory = facts.measurements[0].memory
    for label, name in SIZES:
        if (size := _size(memory, name)) is not None:
            table.add_row(label, gib(size))
    joules = facts.measurements[0].joules_per_sample
    table.add_row(
        "energy", "no counter is readable" if joules is None else f"{joules:.3g} J per sample"
    )
    return table


def _source(facts: MeasureReport) -> str:
    count = len(facts.measurements)
    return "one process" if count == 1 else f"median and range of {count} processes"


def _split(facts: MeasureReport) -> Iterator[RenderableType]:
    split = facts.breakdown.split
    if facts.measurements[0].ranks:
        yield from _ranks(facts.measurements[0].ranks)
        return
    if split is None:
        yield "Its step could not be profiled: it ended, or its loader gave nothing meanwhile."
        return
    yield f"Where a step of {_ms(split.step_s)} goes ({split.steps} steps)"
    table = _table()
    for name, seconds in split.parts.items():
        share = seconds / split.step_s
        table.add_row(name, _ms(seconds), f"{share:4.0%}", "█" * round(BAR * share))
    yield table
    if split.launch_s is not None:
        yield f"  the host needs {_ms(split.launch_s)} to launch compute and optimizer"


def _ranks(ranks: Sequence[RankLoad]) -> Iterator[RenderableType]:
    yield "Where a step of each rank goes; communication includes waiting for other ranks"
    table = _table()
    for load in ranks:
        sent = "unknown" if load.communication_s is None else _ms(load.communication_s)
        table.add_row(
            f"rank {load.rank}",
            _ms(load.step_s),
            f"data wait {_ms(load.wait_s)}",
            f"communication {sent}",
        )
    yield table


def _ceilings(facts: MeasureReport) -> Iterator[RenderableType]:
    breakdown, now = facts.breakdown, facts.measurements[0].throughput.estimate
    if facts.breakdown.split is None:
        return
    yield "Ceilings"
    table = _table()
    for name, ceiling in (
        ("data always ready", breakdown.synthetic_data_throughput),
        ("loader alone", breakdown.loader_throughput),
    ):
        if ceiling is None:
            table.add_row(name, "unknown: needs exactly one DataLoader that trains")
        else:
            times = f"{ceiling.estimate / now:.2f}x of now"
            table.add_row(name, f"{_rate(ceiling)} samples/s", times)
    share = facts.roofline_share
    if breakdown.flops_per_step is not None:
        rate = breakdown.flops_per_step / facts.step_s
        of_peak = "peak unknown here" if share is None else f"{share:.0%} of the {facts.dtype} peak"
        table.add_row("arithmetic", f"{rate / 1e9:,.1f} GFLOP/s", of_peak)
    yield table


def _table() -> Table:
    return Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 2))


def _rate(interval: Interval) -> str:
    return plain(rate(interval))


def _size(memory: Memory, name: str) -> int | None:
    size: int | None = getattr(memory, name)
    return size


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:,.3g} ms"
