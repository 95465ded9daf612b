"""``nohup``, ``time``, ``nice`` and other commands that do not change how a program trains.

A search drops them and says so. In ``autotune run`` they must take effect, so the user is told to
put them before autotune. Commands that do change what a program trains on, such as ``taskset``, are
in ``elsewhere``: they must always start autotune, so that its processes inherit what they set.
"""

from __future__ import annotations

import re
import shlex

from autotune.errors import UsageError
from autotune.program.line.base import Known, Shell
from autotune.program.line.table import Table, named

DURATION = re.compile(r"\d+(\.\d+)?[smhd]?")
HARMLESS = {
    "nohup": Table("nohup"),
    "time": Table("time", valued=named("-f -o"), switches=named("-p -v -a")),
    "nice": Table("nice", valued=named("-n --adjustment"), switches=frozenset()),
    "ionice": Table("ionice", named("-c -n --class --classdata"), frozenset({"-t"})),
    "setsid": Table("setsid", switches=named("-c -f -w --ctty --fork --wait")),
    "stdbuf": Table("stdbuf", named("-i -o -e --input --output --error")),
    "timeout": Table(
        "timeout",
        named("-k -s --kill-after --signal"),
        named("-v -f -p --foreground --preserve-status --verbose"),
    ),
    "unbuffer": Table("unbuffer", switches=frozenset({"-p"})),
    "caffeinate": Table("caffeinate", switches=named("-d -i -m -s -u")),
    "exec": Table("exec", frozenset({"-a"}), named("-c -l")),
    "command": Table("command", switches=frozenset({"-p"})),
}
WITHOUT_EFFECT = frozenset({"exec", "command"})  # they only tell a shell how to start a command


def take_harmless(
    words: tuple[str, ...], known: Known, shell: Shell
) -> tuple[tuple[str, ...], Known]:
    """Read one such command with its options.

    Raises:
        UsageError: The command is used with ``autotune run``, where it must take effect. The
            message names the line to type.
    """
    name = words[0].rpartition("/")[2]
    after = words[1:]
    if name == "nice" and after and re.fullmatch(r"-\d+", after[0]):  # nice -10
        rest = after[1:]
    else:
        rest = HARMLESS[name].take(after).rest
    # timeout takes its duration as an argument, not as an option
    if name == "timeout" and rest and DURATION.fullmatch(rest[0]):
        rest = rest[1:]
    if shell.trains and rest and name not in WITHOUT_EFFECT:
        before = words[: len(words) - len(rest)]
        if known.ranks is not None or "SLURM_NTASKS" in known.env:  # a launcher stands before it
            raise UsageError(
                f"{name} would have no effect here, because autotune starts the training itself. "
                f"Leave it out, or write '{shlex.join(before)}' before autotune."
            )
        raise UsageError(
            f"{name} would have no effect here, because autotune starts the training itself. Put "
            f"it before autotune:\n{known.to_type(before, rest, shell)}"
        )
    return rest, known.with_note(_note(name))


def _note(name: str) -> str:
    match name:
        case "nice" | "ionice":
            return f"{name} is left out: trials have autotune's own priority ('{name} autotune …')."
        case "timeout":
            return "timeout is left out: --budget says how long a search takes."
        case _:
            return f"{name} is left out: it does not change the training."
