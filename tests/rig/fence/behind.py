"""``python behind.py KIND FOLDER REPORT``: raises a fence and runs the writers behind it.

What a rig does, without measuring: run as another user than the tests' own.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from autotune.program.fence_options import FenceKind, FenceOptions
from autotune.program.program import LaunchPlan
from autotune.rig.fence import raise_fence

WRITERS = Path(__file__).parent / "writers.py"


def main(kind: str, folder: str, report: str) -> None:
    """Run the writers; a kind named ``best`` takes what works here."""
    options = FenceOptions(kind=None if kind == "best" else FenceKind(kind))
    with raise_fence(options, Path(report).parent) as fence:
        view = fence.view()
        argv = (
            *(sys.executable, str(WRITERS), fence.kind, folder, str(view.own_dir / "errors")),
            str(view.shadow_dir),
        )
        plan = view.fenced(LaunchPlan(argv, folder), [])
        environment = {**os.environ, "TMPDIR": str(view.own_dir)}
        ended = subprocess.run(
            plan.argv, cwd=folder, env=environment, pass_fds=plan.pass_fds, check=False
        )
        problem = view.error()
        seen = json.loads((view.own_dir / "errors").read_text() or "{}")
        view.close()
    told = {"kind": fence.kind, "code": ended.returncode, "problem": problem}
    Path(report).write_text(json.dumps({**told, **seen, "doubts": fence.warnings}))


if __name__ == "__main__":
    main(*sys.argv[1:])
