"""``python -m autotune.inside.ranks.script_rank ARGS``: a script that starts itself, as a rank.

What the rank is stands in the environment.
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
    """Run the program with these arguments, as a rank beside the one that has started it."""
    part = TypeAdapter(Part).validate_json(os.environ.pop(PART))
    start = decode(part.start.encode())
    assert isinstance(start, Start), "the rig hands on what the parent said"
    listener, group = begin(part, None, is_late=False)
    config = run_program.RecordedConfig(start.setting.config if start.setting else {})
    program = replace(start.program, args=args)
    act = lambda: run_program.run(program, config, listener.seams.flags.see_keywords)  # noqa: E731
    rank_process.run_and_tell(listener, act, group, Path(part.shared))


if __name__ == "__main__":
    main(*sys.argv[1:])
