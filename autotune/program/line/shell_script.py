"""Find the line of a shell script that trains, and tell the user to search that line.

autotune does not run ``bash train.sh``: the script would hide the program from the rigs.

Covered: lines that begin with a known word, continuation lines, variables set to plain text,
exported variables, the script's arguments. Not covered: loops, functions, the output of commands. A
variable whose value is unknown stays in the line, and the user is told to fill it in.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from autotune.errors import UsageError
from autotune.program.line.base import Known, Shell
from autotune.program.line.elsewhere import MANAGERS, can_start
from autotune.program.line.table import named
from autotune.program.line.variables import is_assignment

SHELLS = named("bash sh zsh dash ksh fish source . sbatch qsub bsub")
BATCH = named("sbatch qsub bsub")
VARIABLE = re.compile(r"\$(\w+|\{\w+\}|[@*])")
# Commands that are common in such scripts and never train, although some lie in the environment's
# bin folder like a console script does
OTHERS = named("pip pip3 conda module cd echo export source set mkdir wget rm cp ls")
BORDERS = named("&& || then do else")  # words after which a new command begins
PYTHON_TOOLS = named("pip venv http.server pytest build")  # python -m … that does not train


@dataclass(frozen=True)
class Candidate:
    """A line of a script that may start the training.

    Attributes:
        number: Line number in the file, from 1; of the first line if the command is continued.
        words: The words of the command, with known variables filled in.
    """

    number: int
    words: tuple[str, ...]


def refuse_script(words: tuple[str, ...], known: Known, shell: Shell) -> UsageError:
    """Return the error for a shell script, which names the line that trains and what to type."""
    starter = Path(words[0]).name
    places = [n for n, w in enumerate(words) if n >= (starter in SHELLS) and not w.startswith("-")]
    if "-c" in words[:2] and starter in SHELLS and words[2:]:
        after = shlex.split(words[2])
        return UsageError(
            f"{starter} -c runs another command line. Search that line:\n"
            f"{known.to_type((), after, shell)}"
        )
    if not places:
        return UsageError(f"'{shlex.join(words)}' names no script: autotune search -- python FILE")
    name, arguments = words[places[0]], words[places[0] + 1 :]
    path = shell.cwd / name
    if not path.is_file():
        return UsageError(f"There is no script '{name}'. Paths are taken from {shell.cwd}.")
    found = list(candidates(path.read_text(errors="replace"), arguments, shell))
    if not found:
        return UsageError(
            f"{name} is a shell script, and no line in it was found that starts a Python program. "
            "Search the command that trains: autotune search -- python train.py"
        )
    return UsageError(_answer(name, found, known, shell, is_batch=starter in BATCH))


def _answer(
    name: str, found: list[Candidate], known: Known, shell: Shell, *, is_batch: bool
) -> str:
    lines = [f"{known.to_type((), c.words, shell)}" for c in found]
    if len(found) == 1:
        said = f"{name} is a shell script; its line {found[0].number} starts the program. "
        said += f"In the script, write instead:\n{lines[0]}" if is_batch else f"Type:\n{lines[0]}"
    else:
        numbered = [f"{c.number:5}: {line.strip()}" for c, line in zip(found, lines, strict=True)]
        said = f"{name} is a shell script that starts several programs. Type the line of the one "
        said += "that trains:\n" + "\n".join(numbered)
    unknown = sorted({f"${v.strip('{}')}" for line in lines for v in VARIABLE.findall(line)})
    if unknown:
        said += f"\nReplace by values: {', '.join(unknown)}."
    return said


def candidates(text: str, arguments: tuple[str, ...], shell: Shell) -> Iterator[Candidate]:
    """Yield the commands of a script that start a Python program, in order.

    Variables that the script exported before the command are put in front of it.

    Args:
        text: The script.
        arguments: The script's arguments, for ``$1``, ``$@`` and the like.
        shell: Where the script would be started.
    """
    values = {str(n): a for n, a in enumerate(arguments, start=1)}
    exported: list[str] = []
    for number, line in _logical_lines(text):
        try:
            words = shlex.split(line, comments=True)
        except ValueError:  # an open quote: a text of several lines
            continue
        for command in _commands(words):
            is_export = command[:1] == ["export"]
            bare = command[1:] if is_export else command
            filled = [w for word in bare for w in _filled(word, values, arguments)]
            if filled and all(map(is_assignment, filled)):
                # A value that still has a "$" depends on something that only running can tell.
                values |= {n: v for n, _, v in (w.partition("=") for w in filled) if "$" not in v}
                exported += filled if is_export else []
            elif filled and _starts_program(filled, shell):
                yield Candidate(number, (*exported, *filled))


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield each line joined with its backslash continuations, and the number of its first line."""
    begun, first = "", 0
    for number, line in enumerate(text.splitlines(), start=1):
        first = first if begun else number
        if line.rstrip().endswith("\\"):
            begun += line.rstrip()[:-1] + " "
            continue
        yield first, begun + line
        begun = ""
    if begun:
        yield first, begun


def _commands(words: list[str]) -> Iterator[list[str]]:
    """Yield the commands of a line, without pipes, redirections and the keywords of loops."""
    part: list[str] = []
    for word in [*words, ";"]:
        if word.endswith(";") or word in BORDERS:
            whole = [*part, word[:-1]] if word[:-1] and word.endswith(";") else part
            ends = (n for n, w in enumerate(whole) if re.match(r"\d?[<>|&]", w))
            yield whole[: next(ends, len(whole))]
            part = []
        else:
            part.append(word)


def _filled(word: str, values: dict[str, str], arguments: tuple[str, ...]) -> list[str]:
    """Return a word with known variables filled in; ``$@`` becomes the script's arguments."""
    if word in {"$@", "$*", "${@}"}:
        return list(arguments)

    def value(found: re.Match[str]) -> str:
        return values.get(found[1].strip("{}"), found[0])

    return [VARIABLE.sub(value, word)]


def _starts_program(words: list[str], shell: Shell) -> bool:
    bare = [word for word in words if not is_assignment(word)]
    if not bare or bare[0] in OTHERS:
        return False
    if bare[1:2] == ["-m"] and bare[2:] and bare[2] in PYTHON_TOOLS:
        return False
    return (bare[0] in MANAGERS and "run" in bare) or can_start(bare[0], shell)
