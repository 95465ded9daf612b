"""The check of one program: its truth by its own flags, a search, and runs with the result.

What autotune is held to is judged by functions of values; ``found`` only runs commands.
"""

from __future__ import annotations

import sys
from collections.abc import Generator, Iterator, Mapping, Sequence

from benchmarks.answer import Answer, Ratio, read
from benchmarks.gpu.bench import LATE, Bench, Finding, Sizes, Status, used_bytes, verdict
from benchmarks.gpu.listed import Printed, Setting, TrainingProgram
from benchmarks.processes import AUTOTUNE, Ran

WORTH_CLAIMING = 1.2  # what one flag gives: from here, a search has to claim as much
SHARE_TO_CLAIM = 0.9  # of it
HELD_BYTES = 64 << 20  # the driver's own bookkeeping grows and shrinks by less
OFF = 0.1  # what a figure of memory may be off by
ANSWERED = (0, 3)  # of a search that has measured something, be it the program as written alone
WRITTEN = Setting("as written", ())
Rates = Mapping[str, Sequence[float | str]]  # samples/s or the failure of each run, by setting


def needs_s(program: TrainingProgram, sizes: Sizes) -> float:
    """Return the seconds without which the check is not begun."""
    runs_s = [sizes.start_s + s.builds_s + sizes.counted_s for s in (WRITTEN, *program.settings)]
    return 2 * sum(runs_s) + LATE * sizes.budget_s + 4 * (sizes.start_s + sizes.run_s)


def found(program: TrainingProgram, bench: Bench) -> Iterator[Finding]:
    """Yield what is found, as soon as it is."""
    rates = _rates(program, bench)
    truth = {s.name: ratio(rates, s) for s in program.settings}
    for setting in program.settings:
        seen = truth[setting.name]
        published = f" (published: {setting.published})" if setting.published else ""
        figures = {"ratio": seen.value, "rates": rates} if isinstance(seen, Ratio) else {}
        text = f"by its flag, {setting.name}: {seen}{published}"
        yield Finding(Status.NOTE, text, figures)
    line = program.line(rehearsal=bench.rehearsal)
    ran = yield from _searched(bench, line)
    try:
        answer = read(ran.output)
    except ValueError as error:
        yield Finding(Status.FAIL, f"search: {error}", {"output": ran.output[-2000:]})
        return
    yield judge_claim(truth, program.settings, answer, rehearsal=bench.rehearsal)
    yield note(answer)
    # the bare program and autotune run, ABBA
    line += ["--seconds", str(bench.sizes.run_s)]
    bare, tuned = [sys.executable, *line], [*AUTOTUNE, "run", "best.yaml", *line]
    most_s = 60 + 3 * (bench.sizes.start_s + bench.sizes.run_s)
    printed = [Printed.read(bench.run(c, most_s).output) for c in (bare, tuned, tuned, bare)]
    yield from judge_runs(printed, answer, rehearsal=bench.rehearsal)
    if program.fills and (peak := printed[0].peak_bytes) is not None:
        yield judge_memory(answer.memory_bytes.get("device_reserved_bytes"), peak)


def _rates(program: TrainingProgram, bench: Bench) -> Rates:
    """Return samples per second by the program's own flags, or how a run failed."""
    line = program.line(rehearsal=bench.rehearsal)
    line += ["--seconds", str(bench.sizes.counted_s)]
    settings = [WRITTEN, *program.settings]
    rates: dict[str, list[float | str]] = {}
    for setting in [*settings, *reversed(settings)]:
        most_s = bench.sizes.start_s + 3 * setting.builds_s + 30
        ran = bench.run([sys.executable, *line, *setting.flags], most_s)
        rate = Printed.read(ran.output).samples_per_s
        rates.setdefault(setting.name, []).append(rate or f"it ended with {ran.code}")
    return rates


def ratio(rates: Rates, setting: Setting) -> Ratio | str:
    """Return how much faster one setting is than the program as written, or how it failed."""
    sides = []
    for side in (rates[setting.name], rates[WRITTEN.name]):
        speeds = [rate for rate in side if isinstance(rate, float)]
        if not speeds:
            return str(side[0])
        sides.append(speeds)
    return Ratio.of_speeds(*sides)


def _searched(bench: Bench, line: Sequence[str]) -> Generator[Finding, None, Ran]:
    """Search a program; yield whether it ended in time, and gave back the device's memory."""
    used_before, budget_s = used_bytes(), bench.sizes.budget_s
    command = [*AUTOTUNE, "search", "--json", "--budget", f"{budget_s}s", *line]
    ran = bench.run(command, 3.0 * budget_s)
    yield judge_end(ran, budget_s)
    text = f"processes are left: {'; '.join(ran.left)}" if ran.left else "no process is left"
    yield verdict(text, holds=not ran.left)
    used = used_bytes()
    if used_before is not None and used is not None:
        yield judge_held(used_before, used)
    return ran


def judge_end(ran: Ran, budget_s: int) -> Finding:
    """Return whether a search ended by itself and in time."""
    text = f"a search of {budget_s} s took {ran.seconds:.0f} s"
    if ran.code not in ANSWERED:
        text += f" and ended with {ran.code}"
    figures = {"seconds": ran.seconds, "budget_s": budget_s, "code": ran.code}
    return verdict(text, figures, holds=ran.code in ANSWERED and ran.seconds <= LATE * budget_s)


def judge_held(before: int, after: int) -> Finding:
    """Return whether the device's memory came back."""
    held = after - before
    text = f"device memory after the search: {held / 2**20:+,.0f} MiB"
    return verdict(text, holds=held <= HELD_BYTES)


def judge_claim(
    truth: Mapping[str, Ratio | str],
    settings: Sequence[Setting],
    answer: Answer,
    *,
    rehearsal: bool,
) -> Finding:
    """Return whether a search claims what the best single flag surely gives, where that is much."""
    claim = "no claim" if answer.claim is None else f"claimed {answer.claim}"
    names = {s.name for s in settings if s.counts}
    live = {n: r for n, r in truth.items() if n in names and isinstance(r, Ratio)}
    changes = " ".join(f"{knob}={value}" for knob, value in answer.changes.items())
    text = f"{claim} ({changes or answer.finding})"
    if not live:
        return Finding(Status.NOTE, f"{text}; no flag to compare it with")
    best = max(live, key=lambda name: live[name].log)
    wanted = live[best].least
    text += f"; the best flag, {best}, gives {live[best]}"
    figures = {"claim": answer.claim and answer.claim.value, "best_flag": wanted}
    if rehearsal or wanted is None or wanted < WORTH_CLAIMING:
        return Finding(Status.NOTE, text, figures)
    enough = answer.claim is not None and answer.claim.value >= SHARE_TO_CLAIM * wanted
    return verdict(text, figures, holds=enough)


def note(answer: Answer) -> Finding:
    """Return how soon a search began and how much it measured, and what it could not try."""
    first = "unknown" if answer.first_step_s is None else f"{answer.first_step_s:.0f} s"
    per_minute = 60 * answer.outcomes.get("ok", 0) / answer.seconds
    text = (
        f"first step {first} after its start, {per_minute:.0f} configs per minute, "
        f"{len(answer.untried)} settings untried"
    )
    failed = [f"{n} x {outcome}" for outcome, n in answer.outcomes.items() if outcome != "ok"]
    figures = {
        "first_step_s": answer.first_step_s,
        "configs_per_minute": per_minute,
        "outcomes": dict(answer.outcomes),
        "untried": dict(answer.untried),
    }
    return Finding(Status.NOTE, "; ".join(filter(None, (text, ", ".join(failed)))), figures)


def judge_runs(printed: Sequence[Printed], answer: Answer, *, rehearsal: bool) -> Iterator[Finding]:
    """Yield whether runs as bare, tuned, tuned, bare bear out the claim, on the same device."""
    bare, tuned = [printed[0], printed[3]], [printed[1], printed[2]]
    rates = [[p.samples_per_s for p in side if p.samples_per_s] for side in (tuned, bare)]
    if len(rates[1]) < 2:
        yield Finding(Status.SKIP, f"runs of best.yaml: the bare program printed {rates[1]}")
        return
    if len(rates[0]) < 2:
        text = f"a run of best.yaml printed no rate: {rates[0]}, bare {rates[1]}"
        yield Finding(Status.FAIL, text)
        return
    devices = {p.device for p in printed}
    kinds = {str(name).partition(":")[0] for name in (*devices, answer.device)}
    text = f"the program trains on {', '.join(sorted(map(str, devices | {answer.device})))}"
    yield verdict(text, holds=len(devices) == len(kinds) == 1)
    seen = Ratio.of_speeds(*rates)
    figures = {"printed": seen.value, "error": seen.error, "rates": rates}
    text = f"by its print, best.yaml makes {seen}"
    status = Status.NOTE if rehearsal else Status.SKIP
    if answer.claim is None:
        yield Finding(status, f"no claim to compare; {text}", figures)
        return
    text += f" of the claimed {answer.claim}"
    agree = answer.claim.agrees_with(seen)
    if agree is None:
        yield Finding(status, f"too noisy to compare: {text}", figures)
    else:
        yield verdict(text, figures, holds=agree)


def judge_memory(found: int | None, printed: int) -> Finding:
    """Return whether the memory of the program as written is what it prints itself."""
    known = "unknown" if found is None else f"{found / 2**30:.2f} GiB"
    text = f"memory as written: {known}, by the program {printed / 2**30:.2f} GiB"
    holds = found is not None and abs(found - printed) <= OFF * printed
    return verdict(text, {"bytes": found, "printed": printed}, holds=holds)
