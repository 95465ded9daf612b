"""Try a fence out: a short process enters it and reports what the system refused.

No list of requirements is complete: kernel versions, security modules, containers and file systems
all may refuse an overlay. So a fence is used only after it has worked once.
"""

from __future__ import annotations

import json
import subprocess
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from autotune.program.program import LaunchPlan
from autotune.rig.fence.base import entering
from autotune.rig.fence.spec import FenceSpec

PATIENCE_S = 30.0  # a covered network file system may be slow to answer


class Refused(Exception):
    """A fence cannot be used here; the message is the reason, as a clause for the user."""


def refused_covers(spec: FenceSpec) -> dict[str, str]:
    """Return the folders that could not be covered, with the reasons; empty if all could.

    Args:
        spec: The fence to try, which is entered as a probe.

    Raises:
        Refused: when the fence cannot be entered at all.
    """
    failures: dict[str, str] = _entered(replace(spec, is_probe=True), ()).get("failures", {})
    return failures


def check_runs(spec: FenceSpec, *command: str) -> None:
    """Run a command behind a fence, and check that it succeeds.

    Raises:
        Refused: when the fence cannot be entered, the command fails, or it takes longer than
            ``PATIENCE_S``.
    """
    _entered(spec, command)


def _entered(spec: FenceSpec, command: tuple[str, ...]) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="autotune-") as folder:
        answer_file = Path(folder, "answer")
        replace(spec, answer_file=str(answer_file)).write(Path(folder, "spec"))
        plan = entering(Path(folder, "spec"), LaunchPlan(command, "/"))
        try:
            done = subprocess.run(
                plan.argv,
                cwd=plan.cwd,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=PATIENCE_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise Refused(f"entering it took over {PATIENCE_S:.0f} s") from error
        answer = read_answer(answer_file)
        if "error" in answer or done.returncode:
            said = done.stderr.decode(errors="replace").strip().splitlines() or ["nothing"]
            raise Refused(answer.get("error", f"trying it ended with {said[-1]}"))
        return answer


def read_answer(path: Path) -> dict[str, Any]:
    """Return what a process reported about entering a fence.

    Empty if there is nothing to report: it entered without a problem, or has not tried yet.

    Args:
        path: The answer file that the spec names.
    """
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    answer: dict[str, Any] = json.loads(text) if text else {}
    return answer
