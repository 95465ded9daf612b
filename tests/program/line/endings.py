"""``python -m tests.program.line.endings FOLDER``: how programs end natively, searched and run.

Prints one line of JSON per start. Its processes are copies of this one, which has imported torch;
under a config, and in a rig, what the program starts itself is started for real.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from tests import warm

if TYPE_CHECKING:
    from autotune.program.config import KnobValue

PROGRAM = Path(__file__).parents[2] / "programs" / "ends.py"
WAYS = ("raises", "exits", "is killed", "host memory", "device memory")
# The line before the program, and who starts its ranks
KINDS = {
    "one process": ("python", "nobody"),
    "a module": ("python -m", "nobody"),
    "torchrun": ("torchrun --nproc-per-node 2", "launcher"),
    "ours": ("python", "autotune"),
    "fork": ("python", "fork"),
    "spawn": ("python", "spawn"),
    "script": ("python", "script"),
}
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone")


# What one kind has shown the others need not; who starts ranks decides what is seen of their ends
SOME_WAYS = {
    "a module": ("exits",),
    "torchrun": ("raises", "is killed"),
    "ours": ("exits", "is killed", "device memory"),
    "fork": ("is killed",),
    "spawn": ("raises", "exits"),  # of ranks that start for real
    "script": ("is killed",),
}


def ways_of(kind: str) -> tuple[str, ...]:
    """Return the ways of ending that are tried with a kind of program."""
    return SOME_WAYS.get(kind, WAYS)


def lines() -> Iterator[tuple[str, str, list[str], list[str]]]:
    """Give kinds and ways, the line that is typed, and the one that starts it in a copy."""
    for kind, (before, starter) in KINDS.items():
        for way in ways_of(kind):
            is_module = before.endswith("-m")
            with socket.create_server(("localhost", 0)) as probe:
                port = str(probe.getsockname()[1])
            after = ["ends" if is_module else "ends.py", way, starter, port]
            start = TORCHRUN if starter == "launcher" else (sys.executable,)
            yield kind, way, [*before.split(), *after], [*start, *["-m"] * is_module, *after]


def left_out(kind: str, way: str) -> set[str]:
    """Return what tells nothing more: to Python and a starter of ranks, exceptions are alike."""
    if kind == "ours":
        return {"natively"}  # it has no ranks then
    if kind == "a module" or way.endswith("memory"):
        return {"natively", "run"}
    has_ranks = KINDS[kind][1] != "nobody"
    return {"natively"} if has_ranks and way == "raises" else set()


def main(folder: Path) -> None:
    """Start every kind in every way of ending."""
    os.environ["PATH"] = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    warm.begin()
    from autotune.measurement.outcome import Ending
    from autotune.program.line import Shell, read
    from autotune.results import bestfile
    from autotune.rig.failures import program_error
    from autotune.rig.rig import Rig
    from tests.made import make_loader
    from tests.rigging import fence, never, write_best

    (folder / "ends.py").write_bytes(PROGRAM.read_bytes())
    own, ours = folder / "best.yaml", folder / "ours.yaml"
    write_best(own, {"flush_denormal": False}, flush_denormal=True)
    text = own.read_text(encoding="utf-8")
    assert "distributes_itself: ''" in text
    own.write_text(text.replace("distributes_itself: ''", "distributes_itself: itself"))
    loader = make_loader(dataset_len=8, batch_size=1)
    baseline: dict[str, KnobValue] = {"devices": "single", "batch_size": 1}
    write_best(ours, baseline, loader, devices="ddp-2")
    run = [sys.executable, "-m", "autotune", "run"]
    with fence() as fenced:
        for kind, way, line, native in lines():
            told: dict[str, object] = {"kind": kind, "way": way}
            is_ours = kind == "ours"
            best = ours if is_ours else own
            commands = {"natively": native, "run": [*run, best.name, "--", *line]}
            for name, command in commands.items():
                if name in left_out(kind, way):
                    continue
                done = subprocess.run(
                    command, cwd=folder, capture_output=True, text=True, timeout=300, check=False
                )
                told[name] = (done.returncode, done.stderr)
            program = read(line, Shell.here(cwd=folder)).program
            with Rig(program, folder / f"{kind} {way}", folder / "cache", fenced) as rig:
                ending = rig.open(bestfile.read(ours).applied if is_ours else None, never, 300.0)
            assert isinstance(ending, Ending), ending
            said = str(program_error(program, ending))
            told["search"] = (ending.outcome, ending.reason, said)
            sys.stdout.write(f"{json.dumps(told)}\n")
            sys.stdout.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
