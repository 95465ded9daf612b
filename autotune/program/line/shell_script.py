"""``bash train.sh``: which line of a shell script trains, and what to type for it.

Covered: lines that begin with a known word, continued lines, variables that the script sets to
plain text, its arguments. Not covered: loops, functions, what commands print; what cannot be told
from the text is left as it stands, and said.
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
OTHERS = named("pip pip3 conda module cd echo export source set mkdir wget rm cp ls")
BORDERS = named("&& || then do else")
PYTHON_TOOLS = named("pip venv http.server pytest build")


@dataclass(frozen=True)
class Candidate:
    """A line of a script that may train.

    Attributes:
        number: Of its first line in the file, from 1.
        words: What it runs.
    """

    number: int
    words: tuple[str, ...]


def refuse_script(words: tuple[str, ...], known: Known, shell: Shell) -> UsageError:
    """Return what to say of a shell script: the line that trains, by number, and what to type."""
    starter = Path(words[0]).name
    places = [n for n, w in enumerate(words) if n >= (starter in SHELLS) and not w.startswith("-")]
    if "-c" in words[:2] and starter in SHELLS and words[2:]:
        after = shlex.split(words[2])
        return UsageError(
            f"{starter} -c runs a line of its own. Search that line:\n"
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
            f"{name} is a shell script, and no line of it is seen to start a Python program. "
            "Search what it starts in the end: autotune search -- python train.py"
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
        said = f"{name} is a shell script that starts several programs. Type for the one that "
        said += "trains:\n" + "\n".join(numbered)
    unknown = sorted({f"${v.strip('{}')}" for line in lines for v in VARIABLE.findall(line)})
    if unknown:
        said += f"\nPut values in the place of {', '.join(unknown)}."
    return said


def candidates(text: str, arguments: tuple[str, ...], shell: Shell) -> Iterator[Candidate]:
    """Yield the lines of a script that start a Python program, in order."""
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
                values |= {n: v for n, _, v in (w.partition("=") for w in filled) if "$" not in v}
                exported += filled if is_export else []
            elif filled and _starts_program(filled, shell):
                yield Candidate(number, (*exported, *filled))


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines with those that a backslash continues, and the number of the first."""
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
    """Yield the commands of a line, without pipes, redirections and the words of loops."""
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
    """Return a word with what is known of variables; ``$@`` becomes the script's arguments."""
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
