"""First start: get a program to train in a rig, or find out whose fault it is that it does not.

A program that fails before it trains is started again with a terminal, because some programs need
one. If that does not help, it is started without autotune's seams. Only if it fails there in the
same way does it fail by itself; otherwise autotune may be the cause, and the error says so.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import dataclass, replace

from autotune.errors import UsageError
from autotune.measurement.outcome import ENDED_BY_US, Cause, Ending, Outcome
from autotune.program.program import Program
from autotune.rig import failures, terminal
from autotune.rig.open_rig import ShouldStop
from autotune.rig.rig import Rig
from autotune.rig.rig_factory import RigFactory
from autotune.rig.terminal import COLUMNS, ROWS, Asked
from autotune.rig.wire import Ready
from autotune.tuning.budget import seconds_left

START_SILENCE_S = 900.0  # imports, data preparation and compilation may take minutes

# How long a program may run without seams: this many times as long as it took to fail under them,
# with a minimum and a maximum addition. A loaded machine was seen to start a program in twice the
# time.
TIMES_AS_LONG = 3.0
MIN_BARE_S, MAX_MORE_S = 10.0, 60.0
TELLING = 1.5  # a program that lives this many times as long did not fail in the same way
MAX_LINES = 20  # of its output, shown to the user
MANY_TIMES = 20  # a program that reads its input this often waits for an answer
# Failures that a terminal cannot cure. argparse exits with a usage message, which USAGE recognizes.
NOT_A_TERMINALS = re.compile(
    r"ModuleNotFoundError|ImportError|(Syntax|Indentation|Tab)Error|the process died of"
)
USAGE = re.compile(r"^usage: ", re.MULTILINE)
PIPED = "What is piped into autotune is not passed on to the program"
FILES = "have the program read it from a file that a flag names"


@dataclass(frozen=True)
class Started:
    """A program that trains, on an open rig."""

    rig: Rig
    ready: Ready


@dataclass(frozen=True)
class _Failed:
    ending: Ending
    took_s: float
    printed: str


def observe(rigs: RigFactory, should_stop: ShouldStop) -> Started | Ending:
    """Start a program until it trains, in the run mode that it turns out to need.

    The factory remembers that mode for all further rigs, and the GPUs that the program sees. Users
    are told about each additional start.

    Returns:
        The running program, or why it does not train, and whose fault that is, where that could be
        found out.

    Raises:
        UsageError: when the program reads its input and something is piped into this process.
    """
    first = _start(rigs, should_stop)
    while isinstance(first, _Failed) and rigs.learn(first.ending):
        first = _start(rigs, should_stop)
    if isinstance(first, Started):
        return first
    if not _is_worth_another(rigs, first.ending):
        return _having_piped(first.ending)
    failed = first
    is_usage = first.ending.reason.startswith("SystemExit") and USAGE.search(first.printed)
    may_want_terminal = not is_usage and not NOT_A_TERMINALS.match(first.ending.reason)
    if not rigs.program.mode.terminal and may_want_terminal:
        second = _start_in_terminal(rigs, first, should_stop)
        if isinstance(second, Started):
            return second
        if second is not None and not _is_worth_another(rigs, second.ending):
            return _having_piped(second.ending)
        failed = second or first
    return examined(rigs, failed.ending, failed.took_s, should_stop)


def examined(rigs: RigFactory, ending: Ending, took_s: float, should_stop: ShouldStop) -> Ending:
    """Start a program that failed once more without seams, and return its ending with the cause.

    The ending is returned unchanged if another start would tell nothing: the cause is known, it was
    not a crash, or the fence refused something. Without time for a start the cause is unclear.
    """
    if not _is_worth_another(rigs, ending) or failures.is_fenced_off(ending):
        return ending
    patience_s = max(MIN_BARE_S, min(TIMES_AS_LONG * took_s, took_s + MAX_MORE_S))
    patience_s = min(patience_s, seconds_left(should_stop))
    if patience_s < took_s:
        return replace(ending, cause=Cause.UNCLEAR, evidence="there was no time to start it")
    rigs.reports.note(
        "The program failed. Starting it again without autotune's hooks, to see whether the "
        "program or autotune is the cause."
    )
    until = rigs.clock() + patience_s

    def over() -> Ending | None:
        if rigs.clock() > until:
            return Ending(Outcome.OUT_OF_TIME, f"it still ran after {patience_s:.0f} s")
        return should_stop()

    program = rigs.program
    rigs.program = _in_terminal(program)  # as its user would start it
    try:
        with rigs.new() as rig:
            bare = rig.run_bare(over)
            # After sys.exit() the output stands in for the traceback. The two runs are compared by
            # it, so both must have it.
            if ending.program_traceback:
                bare = _with_words(bare, rig.log_tail())
            return _judged(ending, bare, is_telling=patience_s > TELLING * took_s)
    finally:
        rigs.take_mode(program.mode)


def _judged(ending: Ending, bare: Ending, *, is_telling: bool) -> Ending:
    # The same failure in both runs means that the program fails by itself. A program that goes on
    # without seams, or ends regularly, fails because of autotune. Anything else is unclear.
    match bare.outcome:
        case Outcome.INTERRUPTED:
            return bare
        case Outcome.OUT_OF_TIME | Outcome.RAN_OUT:
            ran = bare.reason if bare.outcome is Outcome.OUT_OF_TIME else "it ran to its end"
            has_lived = is_telling or bare.outcome is Outcome.RAN_OUT
            cause = Cause.AUTOTUNE if has_lived else Cause.UNCLEAR
            return replace(ending, cause=cause, evidence=ran)
        case Outcome.CRASHED if bare.way == ending.way:
            return replace(
                ending,
                cause=Cause.PROGRAM,
                evidence="it ended in the same way",
            )
        case _:
            return replace(
                ending,
                cause=Cause.UNCLEAR,
                evidence=f"it fails in another way: {bare.reason}",
            )


def _start(rigs: RigFactory, should_stop: ShouldStop) -> Started | _Failed:
    began = rigs.clock()
    rig = rigs.new()
    try:
        opened = rig.open(None, should_stop, START_SILENCE_S)
        if not isinstance(opened, Ending):
            _refuse_pipe(rigs, rig)
            rigs.hardware = rigs.hardware.as_seen_by(opened.devices)
            return Started(rig, opened)
        printed = rig.log_tail()
        ending = _having_asked(opened, rig.asked)
        failed = _Failed(_with_words(ending, printed), rigs.clock() - began, printed)
    except BaseException:
        rig.close()
        raise
    rig.close()
    return failed


def _start_in_terminal(
    rigs: RigFactory, first: _Failed, should_stop: ShouldStop
) -> Started | _Failed | None:
    name, program = rigs.program.file_name, rigs.program
    if seconds_left(should_stop) < first.took_s or _in_terminal(program) == program:
        return None
    rigs.reports.note(
        f"{name} failed before it trained ({first.ending.reason}). Starting it once more, in a "
        "terminal."
    )
    rigs.take_mode(_in_terminal(program).mode)
    second = _start(rigs, should_stop)
    if isinstance(second, Started):
        rigs.reports.note(
            f"{name} needs a terminal: its trials get a terminal of {ROWS} rows and {COLUMNS} "
            "columns."
        )
        return second
    if second.ending.outcome in ENDED_BY_US and second.took_s < TELLING * first.took_s:
        rigs.take_mode(program.mode)
        return None
    return second


def _in_terminal(program: Program) -> Program:
    return replace(program, mode=replace(program.mode, terminal=terminal.is_available()))


def _is_worth_another(rigs: RigFactory, ending: Ending) -> bool:
    # Only a crash whose cause is not known yet may tell more
    return (
        ending.outcome is Outcome.CRASHED
        and ending.cause is None
        and not failures.is_settled(rigs.program, ending)
    )


def _with_words(ending: Ending, printed: str) -> Ending:
    # Users then see what the program itself said before it exited, or came to its end.
    exits = ending.outcome is Outcome.RAN_OUT or ending.reason.startswith("SystemExit")
    if ending.program_traceback or not exits:
        return ending
    return replace(ending, program_traceback="\n".join(printed.splitlines()[-MAX_LINES:]))


def _having_asked(ending: Ending, asked: Asked | None) -> Ending:
    # A program that waits for an answer would be reported as slow or hung otherwise
    is_over = ending.outcome in {Outcome.OUT_OF_TIME, Outcome.HUNG}
    if not is_over or asked is None or asked.times < MANY_TIMES:
        return ending
    reason = f'it asks for input again and again ("{asked.prompt}"), and makes no step'
    return replace(ending, reason=reason, cause=Cause.INPUT)


def _having_piped(ending: Ending) -> Ending:
    # Only of a program that asks for input while something is piped in
    if ending.cause is Cause.INPUT and is_piped():
        return replace(ending, evidence=f"{PIPED}: {FILES}")
    return ending


def _refuse_pipe(rigs: RigFactory, rig: Rig) -> None:
    if rig.asked is not None and is_piped():
        raise UsageError(
            f"{rigs.program.file_name} reads its standard input. {PIPED}, and it would train on "
            f"something else: {FILES}, or start autotune with < /dev/null."
        )


def is_piped(descriptor: int = 0) -> bool:
    """Return whether this process's standard input is a pipe or a file."""
    try:
        mode = os.fstat(descriptor).st_mode
    except OSError:  # it is closed
        return False
    return stat.S_ISFIFO(mode) or stat.S_ISREG(mode)
