"""The check of one program: its truth by its own flags, a search, and runs with the result.

What autotune is held to is judged by functions of values; ``ProgramCheck`` only runs commands.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from benchmarks.gpu import device
from benchmarks.gpu.answer import Answer, read
from benchmarks.gpu.bench import Bench, Ran
from benchmarks.gpu.findings import Finding, Status
from benchmarks.gpu.listed import Printed, Setting, TrainingProgram
from benchmarks.gpu.ratio import Ratio, of_speeds

LATE = 1.15  # of the budget
WORTH_CLAIMING = 1.2  # what one flag gives: from here, a search has to claim as much
SHARE_TO_CLAIM = 0.9  # of it
HELD_BYTES = 64 << 20  # the driver's own bookkeeping grows and shrinks by less
ANSWERED = (0, 3)  # of a search that has measured something, be it the program as written alone
WRITTEN = Setting("as written", ())
WRITTEN_ALONE = "as written, in a process of its own"
Rates = Mapping[str, Sequence[float | str]]  # samples/s or the failure of each run, by setting


@dataclass(frozen=True)
class Sizes:
    """Seconds of a check's parts, and how long its processes train.

    Attributes:
        budget_s: Of the search.
        truth_s: Most for the truth by turns within one process.
        counted_s: Seconds that each run of the truth counts.
        run_s: Seconds that each run of the comparison counts.
        start_s: Until a process trains, roughly.
    """

    budget_s: int
    truth_s: float
    counted_s: float
    run_s: float
    start_s: float

    @property
    def whole_s(self) -> float:
        """Seconds of one program, without settings that need processes of their own."""
        return self.truth_s + LATE * self.budget_s + 4 * (self.run_s + self.start_s)


FULL = Sizes(budget_s=60, truth_s=25, counted_s=1.0, run_s=3.0, start_s=6.0)
TINY = Sizes(budget_s=45, truth_s=25, counted_s=0.4, run_s=1.0, start_s=5.0)


@dataclass(frozen=True)
class ProgramCheck:
    """Truth, search and comparison of one program."""

    program: TrainingProgram

    @property
    def name(self) -> str:
        """The program's name."""
        return self.program.name

    def needs_s(self, sizes: Sizes) -> float:
        """Return the seconds without which the check is not begun."""
        fresh_s = [s.fresh_s for s in self.program.settings if s.fresh_s]
        written_s = sizes.counted_s + sizes.start_s if fresh_s else 0.0
        return sizes.whole_s + 2 * (written_s + sum(fresh_s))

    def run(self, bench: Bench) -> None:
        """Run the check."""
        sizes = TINY if bench.rehearsal else FULL
        rates = self._rates(bench, sizes)
        truth = {s.name: ratio(rates, s) for s in self.program.settings}
        self._tell(bench, [told(s, truth[s.name], rates) for s in self.program.settings])
        ran = searched(bench, [*self._line(bench)], sizes.budget_s)
        try:
            answer = read(ran.output)
        except ValueError as error:
            bench.notes.tell(Status.FAIL, f"search: {error}", output=ran.output[-2000:])
        else:
            self._judge(bench, sizes, truth, answer)
        self._tell(bench, [judge_left(bench.left_behind())])

    def _judge(
        self, bench: Bench, sizes: Sizes, truth: Mapping[str, Ratio | str], answer: Answer
    ) -> None:
        claims = judge_claim(truth, self.program.settings, answer, rehearsal=bench.rehearsal)
        self._tell(bench, [claims, note(answer)])
        self._compare(bench, sizes, answer)

    def _line(self, bench: Bench) -> tuple[str, ...]:
        return (str(self.program.path), *(self.program.tiny if bench.rehearsal else ()))

    @staticmethod
    def _tell(bench: Bench, findings: Sequence[Finding]) -> None:
        for finding in findings:
            bench.notes.tell(finding.status, finding.text, **finding.figures)

    def _rates(self, bench: Bench, sizes: Sizes) -> Rates:
        """Return samples per second by the program's own flags, or how a run failed."""
        script, *tiny = self._line(bench)
        seconds = ["--seconds", str(sizes.counted_s)]
        settings = [WRITTEN, *(s for s in self.program.settings if not s.fresh_s)]
        turns = [*settings, *reversed(settings)]
        runs = json.dumps([[*tiny, *seconds, *setting.flags] for setting in turns])
        command = [sys.executable, "-m", "benchmarks.gpu.truth", script, runs]
        lines = bench.run(command, sizes.truth_s).output.splitlines()
        rates: dict[str, list[float | str]] = {}
        for setting, line in zip(turns, lines, strict=False):
            rates.setdefault(setting.name, []).append(json.loads(line)["rate"])
        if fresh := [s for s in self.program.settings if s.fresh_s]:
            alone = [replace(WRITTEN, name=WRITTEN_ALONE), *fresh]
            for setting in [*alone, *reversed(alone)]:
                words = [script, *tiny, *seconds, *setting.flags]
                ran = bench.run([sys.executable, *words], sizes.start_s + 3 * setting.fresh_s + 30)
                rate = Printed.read(ran.output).samples_per_s
                rates.setdefault(setting.name, []).append(rate or f"it ended with {ran.code}")
        return rates

    def _compare(self, bench: Bench, sizes: Sizes, answer: Answer) -> None:
        """Run the bare program and ``autotune run`` in turn, ABBA, and compare what they print."""
        script, *tiny = self._line(bench)
        line = [script, *tiny, "--seconds", str(sizes.run_s)]
        bare = [sys.executable, *line]
        tuned = [*bench.autotune, "run", "best.yaml", *line]
        most_s = 60 + 3 * (sizes.start_s + sizes.run_s)
        printed = [Printed.read(bench.run(c, most_s).output) for c in (bare, tuned, tuned, bare)]
        self._tell(bench, [*judge_runs(printed, answer, rehearsal=bench.rehearsal)])
        if self.program.fills and (peak := printed[0].peak_bytes) is not None:
            known = answer.memory_bytes.get("device_reserved_bytes")
            self._tell(bench, [judge_memory("memory as written", known, peak, peak, 0.1)])


def ratio(rates: Rates, setting: Setting) -> Ratio | str:
    """Return how much faster one setting is than the program as written, or how it failed."""
    sides = []
    written = WRITTEN_ALONE if setting.fresh_s else WRITTEN.name
    for side in (rates.get(name, ["no time was left"]) for name in (setting.name, written)):
        speeds = [rate for rate in side if isinstance(rate, float)]
        if not speeds:
            return str(side[0])
        sides.append(speeds)
    return of_speeds(*sides)


def told(setting: Setting, found: Ratio | str, rates: Rates) -> Finding:
    """Return the note of what one setting gives by the program's own flag."""
    published = f" (published: {setting.published})" if setting.published else ""
    if isinstance(found, Ratio):
        figures = {"ratio": found.value, "error": found.error, "rates": rates}
        return Finding(Status.NOTE, f"by its flag, {setting.name}: {found}{published}", figures)
    return Finding(Status.NOTE, f"by its flag, {setting.name}: {found}")


def searched(bench: Bench, line: Sequence[str], budget_s: int) -> Ran:
    """Search a program; tell whether it ended in time, and gave back the device's memory."""
    used_before = device.used_bytes()
    command = [*bench.autotune, "search", "--json", "--budget", f"{budget_s}s", *line]
    ran = bench.run(command, 3.0 * budget_s)
    found = [judge_end(ran, budget_s)]
    used = device.used_bytes()
    if used_before is not None and used is not None:
        found.append(judge_held(used_before, used))
    for finding in found:
        bench.notes.tell(finding.status, finding.text, **finding.figures)
    return ran


def judge_end(ran: Ran, budget_s: int) -> Finding:
    """Return whether a search ended by itself and in time."""
    text = f"a search of {budget_s} s took {ran.seconds:.0f} s"
    figures = {"seconds": ran.seconds, "budget_s": budget_s, "code": ran.code}
    if ran.code is None:
        return Finding(Status.FAIL, f"{text}: it had to be killed", figures)
    if ran.code not in ANSWERED:
        return Finding(Status.FAIL, f"{text} and ended with {ran.code}", figures)
    in_time = ran.seconds <= LATE * budget_s
    return Finding(Status.PASS if in_time else Status.FAIL, text, figures)


def judge_left(left: Sequence[str]) -> Finding:
    """Return whether processes were left."""
    text = f"processes are left: {'; '.join(left)}" if left else "no process is left"
    return Finding(Status.FAIL if left else Status.PASS, text)


def judge_held(before: int, after: int) -> Finding:
    """Return whether the device's memory came back."""
    held = after - before
    text = f"device memory after the search: {held / 2**20:+,.0f} MiB"
    return Finding(Status.PASS if held <= HELD_BYTES else Status.FAIL, text)


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
    return Finding(Status.PASS if enough else Status.FAIL, text, figures)


def note(answer: Answer) -> Finding:
    """Return how soon a search began and how much it measured, and what it could not try."""
    first = "unknown" if answer.first_step_s is None else f"{answer.first_step_s:.0f} s"
    text = (
        f"first step {first} after its start, {answer.configs_per_minute:.0f} configs per minute, "
        f"{len(answer.untried)} settings untried"
    )
    failed = {k: n for k, n in answer.outcomes.items() if k != "ok"}
    if failed:
        text += "; " + ", ".join(f"{n} x {outcome}" for outcome, n in failed.items())
    return Finding(
        Status.NOTE,
        text,
        {
            "first_step_s": answer.first_step_s,
            "configs_per_minute": answer.configs_per_minute,
            "outcomes": dict(answer.outcomes),
            "untried": dict(answer.untried),
        },
    )


def judge_runs(printed: Sequence[Printed], answer: Answer, *, rehearsal: bool) -> Iterator[Finding]:
    """Yield whether runs as bare, tuned, tuned, bare bear out the claim, on the same device."""
    bare, tuned = [printed[0], printed[3]], [printed[1], printed[2]]
    rates = [[p.samples_per_s for p in side if p.samples_per_s] for side in (tuned, bare)]
    if len(rates[1]) < 2:
        yield Finding(Status.SKIP, f"runs of best.yaml: the bare program printed {rates[1]}")
        return
    if len(rates[0]) < 2:
        yield Finding(
            Status.FAIL, f"a run of best.yaml printed no rate: {rates[0]}, bare {rates[1]}"
        )
        return
    devices = {p.device for p in printed}
    kinds = {str(name).partition(":")[0] for name in (*devices, answer.device)}
    stands = len(devices) == len(kinds) == 1
    text = f"the program trains on {', '.join(sorted(map(str, devices | {answer.device})))}"
    yield Finding(Status.PASS if stands else Status.FAIL, text)
    seen = of_speeds(*rates)
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
        yield Finding(Status.PASS if agree else Status.FAIL, text, figures)


def judge_memory(
    what: str, found: int | None, low: int, high: int, tolerance: float = 0.0
) -> Finding:
    """Return whether a figure of memory lies between two others, with a tolerance."""
    wanted = f"{low / 2**30:.2f}" if low == high else f"{low / 2**30:.2f} to {high / 2**30:.2f}"
    if found is None:
        return Finding(Status.FAIL, f"{what}: unknown to autotune, {wanted} GiB by other means")
    fits = low * (1 - tolerance) <= found <= high * (1 + tolerance)
    text = f"{what}: {found / 2**30:.2f} GiB, {wanted} GiB by other means"
    return Finding(Status.PASS if fits else Status.FAIL, text, {"bytes": found, "low": low})
