"""``python -m autotune.inside.ranks.script_rank ARGS`` runs the program's script as a further rank.

``Children`` starts it in the place of a script that starts itself again, as Lightning's launcher
does. The environment variable named by ``PART`` says which rank it is.
"""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path

from pydantic import TypeAdapter

from autotune.inside import run_program
from autotune.inside.ranks import rank_process
from autotune.inside.ranks.child_rank import Part, begin
from autotune.inside.ranks.children import PART
from autotune.rig.wire import Start, decode


def main(*args: str) -> None:
    """Run the program with these arguments, as a rank next to the process that has started it.

    How the program ended is written to the rig's folder.
    """
    part = TypeAdapter(Part).validate_json(os.environ.pop(PART))
    start = decode(part.start.encode())
    assert isinstance(start, Start), "the rig hands on the parent's first message"
    listener, group = begin(part, None, is_late=False)
    config = run_program.RecordedConfig(start.applied.config if start.applied else {})
    program = replace(start.program, args=args)
    act = lambda: run_program.run(program, config, listener.seams.flags.see_keywords)  # noqa: E731
    rank_process.run_and_tell(listener, act, group, Path(part.shared))


if __name__ == "__main__":
    main(*sys.argv[1:])
