"""All checks by their names: of programs and of commands from outside, and inside a process."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from benchmarks.answer import read
from benchmarks.gpu.bench import LATE, Bench, Finding, Sizes, Status, first_gpu, verdict
from benchmarks.gpu.listed import PROGRAMS
from benchmarks.gpu.program_check import ANSWERED, found, judge_end, needs_s
from benchmarks.processes import AUTOTUNE, Ran

NO_COUNTER = "no counter of energy"
HAS_COUNTER = 7.0  # compute capability: nvmlDeviceGetTotalEnergyConsumption came with Volta
DOCTOR_S = 45.0  # beside the start of its program


@dataclass(frozen=True)
class Check:
    """A check that is begun if the seconds are left that it needs, and yields what it finds."""

    name: str
    needs_s: Callable[[Sizes], float]
    found: Callable[[Bench], Iterator[Finding]]


def _apart(name: str, usual_s: float) -> Check:
    """Return a check of ``benchmarks.gpu.rigs``, which may take four times its usual seconds."""
    return Check(name, lambda _: usual_s, partial(_in_a_process, name, 4 * usual_s))


def _in_a_process(name: str, most_s: float, bench: Bench) -> Iterator[Finding]:
    command = [sys.executable, "-m", "benchmarks.gpu.rigs", name]
    ran = bench.run([*command, "--rehearse"] if bench.rehearsal else command, most_s)
    for line in ran.output.splitlines():
        if line.startswith("{"):  # what it finds; libraries print other lines
            told = json.loads(line)
            yield Finding(Status(told["status"]), told["text"], told["figures"])
    if ran.code:
        last = ran.log.strip().splitlines()[-1:]
        yield verdict(f"it ended with {ran.code} after {ran.seconds:.0f} s: {last}", holds=False)
    if ran.left:
        yield verdict(f"processes are left: {'; '.join(ran.left)}", holds=False)


def energy(bench: Bench) -> Iterator[Finding]:
    """A search for energy reads a counter, and compares configs by it."""
    budget_s = bench.sizes.budget_s
    command = ["search", "--json", "--objective", "energy", "--budget", f"{budget_s}s"]
    ran = _command(bench, "gpt", command, LATE * budget_s)
    capability = float(first_gpu(("compute_cap",)).get("compute_cap", 0))
    if NO_COUNTER in ran.log and (bench.rehearsal or capability < HAS_COUNTER):
        yield Finding(Status.SKIP, NO_COUNTER)
        return
    outcomes = read(ran.output).outcomes if ran.code in ANSWERED else {}
    yield judge_end(ran, budget_s)
    yield verdict(f"configs for energy: {dict(outcomes)}", holds=outcomes.get("ok", 0) > 1)


def doctor(bench: Bench) -> Iterator[Finding]:
    """The doctor says on which device a program trains, and takes its step apart."""
    ran = _command(bench, "overlap", ["doctor", "--json"], 2 * (bench.sizes.start_s + DOCTOR_S))
    if ran.code:
        yield verdict(f"it ended with {ran.code}: {ran.log[-200:]}", holds=False)
        return
    told = json.loads(ran.output)["program"]
    device, parts = told["profile"]["device"], told["parts"]
    wanted = "cpu" if bench.rehearsal else "cuda"
    step = ", ".join(f"{part} {1000 * seconds:.0f} ms" for part, seconds in parts.items())
    is_right = device == wanted and sum(parts.values()) > 0
    yield verdict(f"the program trains on {device}; a step is {step}", holds=is_right)
    advice = "; ".join(one["problem"] for one in told["advice"])
    yield Finding(Status.NOTE, f"advice: {advice or 'none'}")


def _command(bench: Bench, program: str, words: Sequence[str], most_s: float) -> Ran:
    line = next(p for p in PROGRAMS if p.name == program).line(rehearsal=bench.rehearsal)
    return bench.run([*AUTOTUNE, *words, *line], most_s)


OF_PROGRAMS = [
    Check(program.name, partial(needs_s, program), partial(found, program)) for program in PROGRAMS
]
# Seconds of a check by the starts of its processes (11 to 16 s beside an H200), several at a time
INSIDE = [
    _apart("fence", 25.0),
    _apart("early", 15.0),
    _apart("inside", 25.0),
    _apart("settings", 25.0),
    _apart("memory", 40.0),
    _apart("canary", 50.0),
    _apart("compiled", 45.0),
]
OF_COMMANDS = [
    Check("energy", lambda sizes: LATE * sizes.budget_s, energy),
    _apart("strategies", 35.0),
    Check("doctor", lambda sizes: sizes.start_s + DOCTOR_S, doctor),
]
CHECKS = {check.name: check for check in (*OF_PROGRAMS, *INSIDE, *OF_COMMANDS)}
