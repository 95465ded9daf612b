"""Read ``torchrun …`` and ``accelerate launch …``: ranks on one machine.

The launcher's own parser interprets the line in a separate process, because it imports torch, which
the parent must not do, and because the result depends on its version, on the machine and, for
accelerate, on the user's config file.
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import replace
from pathlib import Path

from autotune.errors import UsageError
from autotune.program.line import ask_launcher
from autotune.program.line.ask_launcher import Answer
from autotune.program.line.base import Known, Rest, Shell
from autotune.program.short_process import answer_of

# The commands that modules are under python -m
MODULES = {
    "torch.distributed.run": "torchrun",
    "torch.distributed.launcher": "torchrun",
    "accelerate.commands.launch": "accelerate-launch",
    "accelerate.commands.accelerate_cli": "accelerate",
}
FORMER_TORCHRUN = "torch.distributed.launch"
ANSWER_S = 120.0  # generous: the process imports torch, which may lie on a slow network disk


def take_launcher(words: tuple[str, ...], known: Known, shell: Shell) -> Rest:
    """Read a launcher with its options; the words that each rank runs remain.

    The options of the interpreter that ran the launcher do not apply to the ranks' interpreters.

    Raises:
        UsageError: The launcher is missing, rejects the line, or would start something that
            autotune cannot start (several machines, DeepSpeed …).
    """
    name, rest = Path(words[0]).name, words[1:]
    if name == "accelerate":
        if rest[:1] != ("launch",):
            raise UsageError(
                f"'{' '.join(words[:2])}' starts no training. Search what accelerate launches: "
                "autotune search -- accelerate launch train.py"
            )
        rest = rest[1:]
    answer = ask("torchrun" if name == "torchrun" else "accelerate", rest, known, shell)
    if answer.refused:
        raise UsageError(f"{name}: {answer.refused}")
    # Ranks are started with "python -u"
    unbuffered = ("-u",) if answer.ranks is not None and answer.is_python else ()
    return answer.words, replace(
        known.with_env(answer.env),
        ranks=answer.ranks,
        python_options=unbuffered,
        warning_filters=(),
        is_safe_path=False,
        is_python=answer.is_python,
        notes=(*known.notes, *answer.notes),
    )


def take_launcher_module(words: tuple[str, ...], known: Known, shell: Shell) -> Rest:
    """Read ``-m`` and the module of a launcher as the launcher's command."""
    return take_launcher((MODULES[words[1]], *words[2:]), known, shell)


def refuse_former(words: tuple[str, ...], known: Known, shell: Shell) -> UsageError:
    """Return the error for ``python -m torch.distributed.launch``."""
    rest = [word for word in words[2:] if word not in {"--use-env", "--use_env"}]
    return UsageError(
        "torch.distributed.launch is deprecated by torch, and adds an argument --local-rank to "
        "those of each rank. Have the program read the variable LOCAL_RANK, and search:\n"
        f"{known.to_type((), ('torchrun', *rest), shell)}"
    )


def ask(launcher: str, words: tuple[str, ...], known: Known, shell: Shell) -> Answer:
    """Ask a launcher, in a separate process, what it would do; UsageError if it does not answer."""
    try:
        done = answer_of(
            [shell.python, "-P", "-m", ask_launcher.__name__, launcher, *words],
            ANSWER_S,
            str(shell.cwd),
            {**shell.variables, **known.env},
        )
        # Imports may print to stdout first, so only the last line is the answer.
        answer = Answer(**json.loads(done.stdout.splitlines()[-1]))
    except subprocess.TimeoutExpired as error:
        raise UsageError(f"{launcher} did not read its options within {ANSWER_S:.0f} s.") from error
    except (ValueError, IndexError) as error:
        last = done.stderr.strip().rpartition("\n")[2] or "it said nothing"
        raise UsageError(f"{launcher} cannot read its options: {last}") from error
    return replace(answer, words=tuple(answer.words), notes=tuple(answer.notes))
