"""Whether a program trains as it did: every knob forced on it, compared with the program alone.

    python -m benchmarks.training [--steps 20] [--knobs a,b] [--values 1] PROGRAM.py -- ARGS

The program alone is run three times: twice with one seed, once with another. Then each offered knob
is set to each of its values by a best.yaml of its own, through ``autotune run``, in a fresh process
with the first seed, behind a fence. A knob without effect by itself gets the company of one that
gives it some: prefetch_factor of a worker. recorder.py says what is recorded, likeness.py how it is
judged. Random inputs that are drawn in workers are other ones: that is a verdict of its own.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from time import monotonic

from autotune.cli.train import run_plan
from autotune.knobs import registry
from autotune.knobs.space.space import ResolvedSpace
from autotune.knobs.space.spacefile import load
from autotune.machine import hardware
from autotune.measurement.memory import Memory
from autotune.measurement.outcome import Ending
from autotune.program.applied_config import AppliedConfig
from autotune.program.config import Config, KnobValue
from autotune.program.devices import ranks_in
from autotune.program.fence_options import FenceOptions
from autotune.program.lr import PARTS, LrRule, rule_for
from autotune.program.program import LaunchPlan, Program, parse_program
from autotune.results import bestfile
from autotune.rig import processes
from autotune.rig.fence import Fence, raise_fence
from autotune.rig.rig_factory import RigFactory
from autotune.rig.torchrun_plan import with_ranks
from autotune.tuning.start.first_start import START_SILENCE_S
from benchmarks.likeness import Alone, Judgement, Recording, Verdict, judge
from benchmarks.record import save

COARSER = ("precision", "fsdp_options")
RECORDER = Path(__file__).parent / "recorder.py"
BY_DESIGN = {*PARTS, *COARSER, "sync_batchnorm", "in_order"}
MARK = "AUTOTUNE_TRAINING"  # in the environment of all that a run starts
MAX_GROWTH = 8  # steps of the program alone for each of the largest batch
LONGEST_S = 300.0
POLL_S = 0.05
SEEDS = (0, 0, 1)


@dataclass(frozen=True)
class Case:
    """One value of a knob, with the company that it needs.

    Attributes:
        company: Other knobs without which it has no effect.
    """

    knob: str
    value: KnobValue
    config: Config
    company: str = ""

    def __str__(self) -> str:
        return f"{self.knob}={self.value}{self.company}"


class Bench:
    """Runs one program again and again, each time from the same files.

    Args:
        program: The program.
        text: Its name, as it was typed.
        steps: Optimizer steps that are compared.
        folder: For logs and recordings.
        fence: Keeps a run's files from the next one.
    """

    def __init__(self, program: Program, text: str, steps: int, folder: Path, fence: Fence) -> None:
        self._program, self._text, self._steps = program, text, steps
        self._folder, self._fence = folder, fence
        self._machine = hardware.detect()
        self._runs = 0

    def alone(self) -> Alone:
        """Run the program without autotune."""
        more = (MAX_GROWTH, 1, 1)
        runs = [self._alone(seed, factor) for seed, factor in zip(SEEDS, more, strict=True)]
        return Alone(*runs)

    def under(self, applied: AppliedConfig) -> Recording:
        """Run it as ``autotune run`` does."""
        path = self._folder / "best.yaml"
        best = best_file(applied, self._program, self._machine)
        best.write(path)
        plan = run_plan(best, path, self._program, self._machine)
        command = ("-m", *plan.argv[plan.argv.index("-m") + 1 :])
        recording = self._record(plan, command, SEEDS[0], self._steps)
        shares = 1 if applied.traits.distributes_itself else ranks_in(applied.config)
        return recording.of_ranks(shares)

    def _alone(self, seed: int, factor: int) -> Recording:
        command = (self._text, *self._program.args)
        return self._record(LaunchPlan((), "."), command, seed, self._steps * factor)

    def _record(self, plan: LaunchPlan, command: Sequence[str], seed: int, steps: int) -> Recording:
        self._runs += 1
        folder = self._folder / f"{self._runs:03d}"
        folder.mkdir()
        target, mark = folder / "recording.json", str(folder)
        numbers = map(str, (self._steps, steps, seed))
        argv = (sys.executable, "-P", str(RECORDER), str(target), *numbers, *command)
        plan = replace(plan, argv=argv).with_env(PYTHONHASHSEED="0", **{MARK: mark})
        with closing(self._fence.view()) as view:
            plan = view.fenced(with_ranks(plan), [self._folder])
            process = processes.start(plan, folder / "log.txt")
            mounts = processes.OwnMounts.of(process.pid)
            try:
                _wait_for(process, target)
            finally:
                processes.end_tree(process, mark=(MARK, mark), mounts=mounts)
                if mounts is not None:
                    mounts.close()
        if target.is_file():
            return Recording.read(target.read_text(encoding="utf-8"))
        log = (folder / "log.txt").read_text(encoding="utf-8", errors="replace").splitlines()
        return Recording((), log[-1] if log else f"exit code {process.returncode}", (), ())


def _wait_for(process: subprocess.Popen[bytes], target: Path) -> None:
    """Wait until the first rank has written, or the process has ended."""
    until = monotonic() + LONGEST_S
    while monotonic() < until and not target.is_file():
        with suppress(subprocess.TimeoutExpired):
            process.wait(POLL_S)
            return


def best_file(
    applied: AppliedConfig, program: Program, machine: hardware.Hardware
) -> bestfile.BestFile:
    """Return a best.yaml with a setting, as a search would write it."""
    facts = {n: getattr(applied, n, None) for n in bestfile.ProgramSection.model_fields}
    one = {"estimate": 1.0, "low": 1.0, "high": 1.0}
    return bestfile.BestFile(
        program=bestfile.ProgramSection(
            **facts
            | {"command": str(program), "fingerprint": program.fingerprint, "ranks": program.ranks}
        ),
        config=dict(applied.config),
        baseline=dict(applied.baseline),
        speedup=bestfile.SpeedupSection(**one),
        throughput=bestfile.ThroughputSection(baseline=1.0, best=1.0),
        memory=bestfile.MemorySection(baseline=Memory(), best=Memory()),
        learning=bestfile.LearningSection(
            lr_rule=applied.lr_rule,
            lr_factor=1.0,
            batch_size={"baseline": None, "best": None},
            loss={"baseline": None, "best": None},
            note="",
        ),
        hardware=machine,
        versions=dict(machine.versions),
        search=bestfile.SearchSection(
            trials=1, seconds=1.0, verdict="faster", confirmed=True, processes=1, date=""
        ),
    )


def cases(space: ResolvedSpace, knobs: Sequence[str], most: int | None) -> Iterator[Case]:
    """Yield every value of the knobs but the program's own.

    Args:
        space: What is offered.
        knobs: Those that are wanted; empty for all.
        most: Values of a knob, those of the largest effect; None for all.
    """
    for knob, domain in space.domains.items():
        values = [v for v in domain.values if v != space.baseline[knob]]
        if knobs and knob not in knobs:
            continue
        for value in values if most is None else values[-most:]:
            config = space.baseline.replace(**{knob: value})
            case = Case(knob, value, config)
            yield case if _is_sound(space, case) else _in_company(space, case)


def _is_sound(space: ResolvedSpace, case: Case) -> bool:
    """The value has an effect, and nothing speaks against it."""
    return registry()[case.knob].is_active(case.config) and not space.conflicts(case.config)


def _in_company(space: ResolvedSpace, case: Case) -> Case:
    """The case with the first other knob's value that gives it an effect; itself without one."""
    for other, domain in space.domains.items():
        for value in domain.values:
            added = case.config.replace(**{other: value})
            found = replace(case, config=added, company=f" with {other}={value}")
            if other != case.knob and _is_sound(space, found):
                return found
    return case


def by_design(config: Config, baseline: Config) -> bool:
    """Tell whether a config changes learning, and says so."""
    return bool(BY_DESIGN & config.changes_from(baseline).keys())


def observe(program: Program, folder: Path) -> tuple[ResolvedSpace, AppliedConfig] | Ending:
    """Open a rig once; return what a search of everything would have, and the baseline."""
    machine = hardware.detect()
    with RigFactory(program, folder, machine) as rigs, rigs.new() as rig:
        ready = rig.open(None, lambda: None, START_SILENCE_S)
    if isinstance(ready, Ending):
        return ready
    space = load("full").resolve(machine, ready.profile)
    return space, AppliedConfig.as_written(space.baseline, ready.profile, flags=space.flags)


class Table:
    """Prints a row as soon as it is known, and keeps all."""

    def __init__(self) -> None:
        self.rows: list[dict[str, str]] = []

    def add(self, name: str, judgement: Judgement) -> None:
        """Add a row."""
        self.rows.append({"case": name, **asdict(judgement)})
        print(f"{name:44} | {judgement.verdict:21} | {judgement.evidence}", flush=True)


def compare(bench: Bench, program: Program, folder: Path, options: argparse.Namespace) -> Table:
    """Run all cases of a program."""
    table = Table()
    print(f"{program}: {options.steps} steps", flush=True)
    alone = bench.alone()
    if not alone.run.steps:
        table.add("alone", Judgement(Verdict.FAILED, alone.run.ended))
        return table
    table.add("alone", Judgement(Verdict.SAME, alone.describe()))
    found = observe(program, folder)
    if isinstance(found, Ending):
        table.add("autotune", Judgement(Verdict.REFUSED, f"{found.outcome}: {found.reason}"))
        return table
    space, base = found
    knobs = [knob for knob in options.knobs.split(",") if knob]
    for knob, reason in space.refused.items():
        if not knobs or knob in knobs:
            table.add(knob, Judgement(Verdict.REFUSED, reason))
    for case in cases(space, knobs, options.values):
        tuned = bench.under(replace(base, config=case.config))
        changes = by_design(case.config, base.config)
        families = base.traits.optimizers[0].families if base.traits.optimizers else ()
        rule = rule_for(families) if base.lr_rule is LrRule.AUTO else base.lr_rule
        table.add(str(case), judge(alone, tuned, rule, options.steps, by_design=changes))
    return table


def main() -> None:
    """Run the benchmark, print its table and keep its figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("program")
    parser.add_argument("args", nargs="*", help="The program's own, after --.")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--knobs", default="", help="Some alone: a,b.")
    parser.add_argument("--values", type=int, help="At most so many of each knob.")
    parser.add_argument("--json", type=Path, help="Where figures go, instead of results/.")
    options = parser.parse_args()
    program = parse_program(options.program, options.args)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # what was started ends with it
    with tempfile.TemporaryDirectory(prefix="autotune-") as name:
        folder = Path(name)
        with raise_fence(FenceOptions(), folder) as fence:
            bench = Bench(program, options.program, options.steps, folder, fence)
            table = compare(bench, program, folder, options)
    figures = {"program": str(program), "steps": options.steps, "cases": table.rows}
    if options.json is None:
        print(f"kept in {save('training', figures)}")
    else:
        options.json.write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
