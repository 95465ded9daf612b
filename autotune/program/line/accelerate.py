"""Read ``accelerate launch …`` with its flags and its config file.

accelerate itself interprets them in a separate process, because the result depends on its version,
the user's config file and the machine.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace

from autotune.errors import UsageError
from autotune.program.line import ask_accelerate
from autotune.program.line.ask_accelerate import Answer
from autotune.program.line.base import Known, Shell

MODULES = frozenset({"accelerate.commands.launch", "accelerate.commands.accelerate_cli"})
ANSWER_S = 120.0  # generous: accelerate imports torch, which may lie on a slow network disk


def take_accelerate(
    words: tuple[str, ...], known: Known, shell: Shell
) -> tuple[tuple[str, ...], Known]:
    """Read ``accelerate launch``; the words that each rank runs remain.

    Raises:
        UsageError: accelerate is missing, rejects the line, or would start something that autotune
            cannot start (DeepSpeed, several machines …).
    """
    if words[1:2] != ("launch",):
        raise UsageError(
            f"'{' '.join(words[:2])}' starts no training. Search what accelerate launches: "
            "autotune search -- accelerate launch train.py"
        )
    answer = _asked(words[2:], known, shell)
    if answer.refused:
        raise UsageError(f"accelerate launch: {answer.refused}")
    unbuffered = ("-u",) if answer.ranks is not None else ()  # torchrun starts them then
    known = replace(
        known.with_env(answer.env),
        ranks=answer.ranks,
        python_options=(*known.python_options, *unbuffered),
        is_python=answer.is_python,
    )
    return tuple(answer.words), known


def take_accelerate_launch(
    words: tuple[str, ...], known: Known, shell: Shell
) -> tuple[tuple[str, ...], Known]:
    """Read ``accelerate-launch``, accelerate's other name for ``accelerate launch``."""
    return take_accelerate(("accelerate", "launch", *words[1:]), known, shell)


def _asked(words: tuple[str, ...], known: Known, shell: Shell) -> Answer:
    """Ask accelerate, in a separate process, what it would do with its options.

    The process is separate because accelerate imports torch, which the parent must not do.
    """
    try:
        done = subprocess.run(
            [shell.python, "-P", "-m", ask_accelerate.__name__, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ANSWER_S,
            check=False,
            cwd=shell.cwd,
            env={**shell.variables, **known.env},
        )
        # Imports may print to stdout first, so only the last line is the answer.
        return Answer(**json.loads(done.stdout.splitlines()[-1]))
    except subprocess.TimeoutExpired as error:
        raise UsageError(
            f"accelerate did not read its options within {ANSWER_S:.0f} s. Does "
            "'accelerate launch --help' answer?"
        ) from error
    except (ValueError, IndexError) as error:
        last = done.stderr.strip().splitlines()[-1:] or ["it said nothing"]
        raise UsageError(f"accelerate launch cannot read its options: {last[0]}") from error
