"""Training under a config: no measuring, no redirects; behind ``autotune run`` and ``apply()``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from autotune import bestfile
from autotune.inside import launch
from autotune.inside.seams import Seams, loose_knobs
from autotune.knobs import launched
from autotune.program import LaunchPlan, parse_program
from autotune.setting import Setting

IN_RIG = "AUTOTUNE_RIG"
IN_RUN = "AUTOTUNE_RUN"
STARTS_WITH_THE_PROCESS = {"malloc"}


def install(setting: Setting) -> Seams:
    """Apply a setting to the program that this process is about to run."""
    seams = Seams(None, setting.loader, loose_knobs(setting))
    seams.apply(setting)
    seams.install()
    return seams


def apply(path: Path) -> None:
    """Apply a best.yaml to this process; does nothing where autotune already steers the program."""
    if IN_RIG in os.environ or IN_RUN in os.environ:
        return
    from autotune import hardware

    best = bestfile.read(path)
    for doubt in best.doubts(hardware.detect(), fingerprint=None):
        sys.stderr.write(f"autotune: {doubt}\n")
    plan = launched(best.setting, LaunchPlan((), ".", args=tuple(sys.argv[1:])))
    sys.argv[1:] = plan.args
    os.environ.update(plan.env)
    for knob in best.setting.changes().keys() & STARTS_WITH_THE_PROCESS:
        sys.stderr.write(
            f"autotune: {knob} acts only where a process starts: use 'autotune run {path} ...'.\n"
        )
    install(best.setting)


def main(best_path: str, program_text: str, *args: str) -> None:
    """Run a program under a best.yaml, as ``python PROGRAM ARGS`` would run it."""
    program = parse_program(program_text, args)
    setting = bestfile.read(Path(best_path)).setting
    plan = launched(setting, LaunchPlan((), program.cwd, args=program.args))
    install(setting)
    launch.run(plan.of(program), launch.RecordedConfig(setting.config))


if __name__ == "__main__":
    main(*sys.argv[1:])
