"""Train under a config, without measuring and without a fence around the user's files.

``autotune run`` starts this module in the process that trains; ``autotune.apply()`` calls
``apply()`` in a process that already runs.
"""

from __future__ import annotations

import atexit
import gc
import inspect
import os
import shlex
import sys
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import replace
from operator import itemgetter
from pathlib import Path
from typing import Any, TypeVar

from torch.optim import Optimizer
from torch.utils.data import DataLoader

from autotune.errors import UsageError
from autotune.files.scratch import Scratch
from autotune.inside import run_program
from autotune.inside.hubs.patches import Patches, Seam
from autotune.inside.processes.child_rank import RunChildren
from autotune.inside.ranks.group import Group, is_rank, join, stand_alone
from autotune.inside.seam_set import STEPS_UNTIL_ROOTS_ARE_KNOWN, ModelSeams, SeamSet, StepSeams
from autotune.inside.steering import install
from autotune.knobs import launch_plan_for
from autotune.program.applied_config import AppliedConfig
from autotune.program.config import Config
from autotune.program.domain import ranks_in, strategy_in
from autotune.program.flags import KEYWORD
from autotune.program.line import read
from autotune.program.lr import LrRule
from autotune.program.program import LaunchPlan
from autotune.results import bestfile

Living = TypeVar("Living")
# Variables of the environment by which apply() sees that autotune already steers the program.
IN_RIG = "AUTOTUNE_RIG"
IN_RUN = "AUTOTUNE_RUN"
# What the latter holds where the file's second config is meant; that of another kind of machine is
# told by its fingerprint
LARGER_BATCH = "larger batch"
EXPLAIN = "--explain"  # before the path of a best.yaml: train nothing
BATCH = {"batch_size", "accumulation_steps"}
APPLIED: list[AppliedConfig] = []  # to this process by apply(); one that it forks has it, too
RATE_NOTES = {
    LrRule.LINEAR: "the learning rate follows (linear rule)",
    LrRule.SQRT: "the learning rate follows (sqrt rule)",
    LrRule.NONE: "the learning rate stays",
    LrRule.AUTO: "the learning rate of each optimizer follows the rule for its kind",
}


def apply(path: Path, allow_env: Collection[str] = (), *, larger_batch: bool = False) -> None:
    """Apply a best.yaml to this process, and to the loaders and optimizers that it has built.

    Nothing happens if autotune already steers the program, as in a search or under ``autotune
    run``, or if the same config was applied before. Knobs that take effect only when a process
    starts are left at the program's values, with a note on stderr.

    Args:
        allow_env: Environment variables that the file may set although they are not known to tune.
        larger_batch: Whether to apply the file's config with a larger batch.

    Raises:
        UsageError: when the file sets such variables and they are not allowed, when another config
            was applied before, when the config needs flags of the program that were not typed, or
            several ranks, which only ``autotune run`` starts, or when it changes the batch and a
            loader or an optimizer is built already: its length and its rate were read.
    """
    if IN_RIG in os.environ or IN_RUN in os.environ:
        return
    from autotune.machine import hardware

    machine = hardware.detect()
    best, kind = bestfile.read(path, larger_batch=larger_batch).on(machine)
    applied = best.applied
    if applied in APPLIED:  # for another fold, or another trainer
        return
    if APPLIED:
        raise UsageError(f"Another config was applied before {path}. Train in a process for each.")
    said = best.use(path, allow_env)
    for line in (*filter(None, [kind]), *said, *best.warnings(machine, None)):
        sys.stderr.write(f"autotune: {line}\n")
    loaders: list[DataLoader[Any]] = _living(DataLoader)
    # accelerate's optimizer is one around another, whose groups it shows
    optimizers = [one for one in _living(Optimizer) if "param_groups" in vars(one)]
    if (loaders or optimizers) and (changed := sorted(BATCH & applied.changes().keys())):
        early = f"{type((loaders or optimizers)[0]).__name__} was built before {path} was applied"
        raise UsageError(
            f"The {early}, too late for {', '.join(changed)}. Apply it before the program builds "
            f"any, or train with 'autotune run {path} ...'."
        )
    os.environ.update(_variables(applied, path))
    # The program has read its keywords and its environment already
    keywords = {n for n, flag in applied.traits.flags.items() if flag.name.startswith(KEYWORD)}
    late = [knob for knob in applied.changes() if knob in keywords or knob.startswith("$")]
    for knob in late:
        sys.stderr.write(
            f"autotune: {knob} takes effect only when a process starts: use 'autotune run {path} "
            "...'.\n"
        )
    written = {knob: applied.baseline[knob] for knob in late if knob in applied.baseline}
    kept = {knob: value for knob, value in applied.config.items() if knob not in late}
    seams = install(replace(applied, config=Config({**kept, **written})), is_late=True)
    for loader in loaders:
        seams.loader.built.of(loader)
    for optimizer in optimizers:
        seams.steps.optimizer.follow(optimizer)
    APPLIED.append(applied)
    acting = " ".join(f"{k}={v}" for k, v in applied.changes().items() if k not in late)
    if os.environ.get("LOCAL_RANK", "0") == "0":
        sys.stderr.write(f"autotune: {path.name} sets {acting or 'nothing'}\n")


def _variables(applied: AppliedConfig, path: Path) -> dict[str, str]:
    """Return the environment variables of a config; refuse one that needs another command line."""
    typed = tuple(sys.argv[1:])
    plan = launch_plan_for(applied, LaunchPlan((), ".", args=typed))
    if plan.ranks is not None:
        raise UsageError(
            f"{path} needs {plan.ranks} ranks. Start them with 'autotune run {path} ...'."
        )
    if plan.args != typed:  # the program may have read its command line already
        raise UsageError(
            f"{path} needs other flags of the program than were typed. Type these: "
            f"{shlex.join(plan.args)}. Or train with 'autotune run {path} ...'."
        )
    return dict(plan.env)


def _living(kind: type[Living]) -> list[Living]:
    # isinstance() would run the code of lazy proxy objects
    return [one for one in gc.get_objects() if issubclass(type(one), kind)]


def _ranks_note(applied: AppliedConfig, group: Group) -> str:
    strategy = strategy_in(applied.config, "ddp")
    note = (
        f"{group.world_size} ranks train by {strategy}. The sample counts, speeds and training "
        "losses that the program prints are those of one rank's share."
    )
    searched = ranks_in(applied.config)
    if group.world_size != searched:
        note += (
            f" A step has {group.world_size / searched:g} times the samples of a step "
            f"in the search; {RATE_NOTES[applied.lr_rule]}."
        )
    return note


def main(best_path: str, *words: str) -> None:
    """Run a program under a best.yaml; with several ranks, as one of them.

    A program that distributes its own training, or that no launcher started, runs as it is. Any
    other program runs as one of autotune's ranks; only the first rank's output and files are kept.

    Args:
        words: The program's command line, as ``Program.words`` gives it.
    """
    program = read(words).program
    applied = _applied(best_path)
    plan = launch_plan_for(applied, LaunchPlan((), program.cwd, args=program.args))
    config = run_program.RecordedConfig(applied.config)
    if applied.traits.distributes_itself or not is_rank(os.environ):
        group = join(os.environ)
        install(applied, group)
        if not group.is_launched:
            started = replace(program, args=()).words
            command = ("-P", "-m", "autotune.inside.train", best_path, *started)
            RunChildren(applied, command)
        with run_program.own_tracebacks():
            run_program.run(plan.of(program), config)
        return
    group = join(os.environ)
    stand_alone(group, applied.traits)
    if group.is_first and group.world_size > 1:
        sys.stderr.write(f"autotune: {_ranks_note(applied, group)}\n")
    seams = install(applied, group)
    if not group.is_first:
        _silence(seams)
    seams.model.distribution.agree()
    with run_program.own_tracebacks():
        run_program.run(plan.of(program), config)
    group.leave()


def _applied(best_path: str) -> AppliedConfig:
    kind = os.environ.get(IN_RUN, "")
    best = bestfile.read(Path(best_path), larger_batch=kind == LARGER_BATCH)
    return best.of_group(kind).applied


def _silence(seams: SeamSet) -> None:
    """Keep what this rank writes, and its temporary files, in a folder that is deleted at the end.

    Temporary files lie next to the shadows of files, not among them: a program that empties its
    temporary folder would otherwise walk through what the shadows stand for, which is everything.
    """
    folder = Scratch(Path(tempfile.gettempdir()))
    shadows, temporary = folder.path / "files", folder.path / "temporary"
    temporary.mkdir()
    tempfile.tempdir = os.environ["TMPDIR"] = str(temporary)

    def delete() -> None:
        seams.remove()  # first: the guard shows at a shadow's place what it stands for
        folder.close()

    atexit.register(delete)  # called after what the program registers, which may write files
    seams.fence.silence(shadows)


def explained(applied: AppliedConfig) -> list[str]:
    """Return the places of PyTorch that a training under a config replaces, and what acts there.

    The config is applied to this process, as ``autotune run`` applies it, and taken back. Each
    sentence is a line: the settings, then one line for each place.
    """
    seams = install(applied)
    try:
        rows = dict.fromkeys(sorted(_rows(seams), key=itemgetter(0)))  # the outermost first
    finally:
        seams.remove()
    changes = ", ".join(f"{knob}={value}" for knob, value in applied.changes().items())
    wide = max(len(place) for place, _ in rows)
    return [
        f"{changes or 'No setting is changed'}. While the program trains, autotune acts at:",
        *(f"  {place:<{wide}}  {what}" for place, what in rows),
    ]


def _rows(seams: SeamSet) -> Iterator[tuple[str, str]]:
    """Yield the places that are replaced now, each with what acts there, the outermost first."""
    passing = {
        id(seams.steps.optimizer): f" (first {STEPS_UNTIL_ROOTS_ARE_KNOWN} steps only)",
        id(seams.steps.by_hand): " (first step only)",
    }
    for place, hub in (
        ("torch.autograd.backward", seams.hubs.backward),
        ("steps of torch.optim", seams.hubs.steps),
        ("torch.save", seams.hubs.saving),
        ("torch.utils.data.DataLoader", seams.hubs.iterate),
    ):
        for listener in hub.listeners:
            yield place, _does(listener) + passing.get(id(listener), "")
    if seams.model.checkpoint.is_needed:  # once the blocks are known
        yield "forward of repeated blocks", _does(seams.model.checkpoint)
    for seam in _seams(seams):
        for part in vars(seam).values():
            if isinstance(part, Patches):
                yield from ((p, _does(seam) + passing.get(id(seam), "")) for p in part.places)


def _seams(owner: object) -> Iterator[Seam]:
    for part in vars(owner).values():
        if isinstance(part, Seam):
            yield part
        if isinstance(part, (Seam, ModelSeams, StepSeams)):
            yield from _seams(part)


def _does(seam: object) -> str:
    said = inspect.getdoc(type(seam)) or type(seam).__name__
    return said.splitlines()[0].rstrip(".")


if __name__ == "__main__":
    if sys.argv[1] == EXPLAIN:
        sys.stdout.write("\n".join(explained(_applied(sys.argv[2]))) + "\n")
    else:
        main(*sys.argv[1:])
