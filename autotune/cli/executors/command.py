"""``command 'TEMPLATE {line}'``: the user's own way to start a line elsewhere, such as ``qsub``.

The template is split as a shell splits words, and no shell runs it: ``;``, ``|`` and ``$`` mean
nothing in it. A word that is ``{line}`` alone becomes the words of the line; within a longer word,
as in ``--wrap={line}``, it becomes the line quoted for a shell. The template runs once a worker.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Collection, Iterator, Sequence
from typing import ClassVar

from autotune.cli.executors.base import Executor, OptionParser, Submission
from autotune.errors import UsageError

LINE = "{line}"


class Command(Executor):
    """Runs a template once a member."""

    name: ClassVar[str] = "command"
    usage: ClassVar[str] = f"\"command 'qsub -b y {LINE}'\""

    def __init__(self, options: str) -> None:
        """Take the template, which may be quoted as a whole."""
        parser = OptionParser(Command)
        words = parser.words(options)
        self._template = parser.words(words[0]) if len(words) == 1 else words
        if not any(LINE in word for word in self._template):
            parser.error(f"the template has no {LINE}")
        self._members: list[subprocess.Popen[bytes]] = []

    def submit(self, line: Sequence[str], count: int) -> Submission:
        argv = list(self._filled(line))
        for _ in range(count):
            try:
                member = subprocess.Popen(
                    argv, stdin=subprocess.DEVNULL, stdout=sys.stderr, start_new_session=True
                )
            except OSError as error:
                raise UsageError(f"'{argv[0]}' cannot be started: {error.strerror}.") from None
            self._members.append(member)
        ending = f"What {argv[0]} has started is ended by its own means."
        return Submission(tuple(f"{argv[0]} {n + 1}" for n in range(count)), ending)

    def unfinished(self) -> Collection[str] | None:
        # One that was started well may have put its member into a queue
        return () if all(member.poll() for member in self._members) else None

    def _filled(self, line: Sequence[str]) -> Iterator[str]:
        for word in self._template:
            if word == LINE:
                yield from line
            else:
                yield word.replace(LINE, shlex.join(line))
