"""Classify how a rig ended: turn its exception, exit code and log into an ``Ending``.

An ``Ending`` holds an outcome and one line for the user. Only the exception and the exit code
decide; the log is quoted but never searched, because programs that train well print "error" too.

Covered: every spelling of out-of-memory that PyTorch, CUDA, HIP and Python use; processes that the
kernel kills; shared memory that is too small; exceptions of the program. A program that catches its
own out-of-memory error and goes on does not end: the race sees that by torch's retries
(``tuning.race``).
"""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import cache
from itertools import islice
from pathlib import Path
from typing import assert_never

from pydantic import TypeAdapter, ValidationError

from autotune.errors import NothingMeasured, ProgramError, RigError
from autotune.files import access
from autotune.measurement.outcome import Cause, Ending, Outcome
from autotune.program.program import Program
from autotune.rig.wire import Ended, decode

SHM_MEND = (
    "shared memory (/dev/shm) is too small: use fewer workers, or start the container with a "
    "larger --shm-size"
)
# The outcome of an exception about memory or space, by the spellings of torch, CUDA, HIP, cuBLAS,
# cuDNN, c10, Python and Linux. Shared memory comes first: its errors may end with "Cannot allocate
# memory".
ROOM = (
    (
        re.compile(
            r"[Bb]us error|insufficient shared memory|file </torch_\d+.*No space left on device"
            r"|unable to (allocate|write|mmap).*shared memory"
            r"|No space left on device: '/dev/shm|shm_open"
        ),
        Outcome.SHARED_MEMORY,
        SHM_MEND,
    ),
    (
        re.compile(
            r"OutOfMemoryError|(CUDA|HIP)\]?:?( driver)?( error:)? out of memory"
            r"|(Cuda|HIP) failure (\d+ )?'out of memory'|[A-Z]+_ALLOC_FAILED\b|hipErrorOutOfMemory"
            r"|MPS backend out of memory"
        ),
        Outcome.OUT_OF_MEMORY,
        "the device ran out of memory",
    ),
    (
        re.compile(
            r"DefaultCPUAllocator: (can't|not enough memory)|MemoryError\b"
            r"|\[Errno 12\]|Cannot allocate memory"
        ),
        Outcome.HOST_OUT_OF_MEMORY,
        "the host ran out of memory",
    ),
    (
        re.compile(r"DataLoader worker .* killed by signal: Killed"),
        Outcome.HOST_OUT_OF_MEMORY,
        (
            "a loader worker was killed, as the kernel does when host memory runs out; fewer "
            "workers need less"
        ),
    ),
    (
        re.compile(r"No space left on device|Disk quota exceeded"),
        Outcome.SCRATCH_FULL,
        "no space was left on the disk where it wrote",
    ),
)
# What is said where cuDNN, cuBLAS or cuSOLVER got no memory, and where something else is wrong:
# https://github.com/pytorch/pytorch/issues/108645, https://discuss.pytorch.org/t/125450. So says
# NCCL's result that a call of CUDA has failed.
VEILED = re.compile(
    r"unable to find an engine|[A-Z]+_STATUS_(INTERNAL_ERROR|NOT_INITIALIZED)"
    r"|ncclUnhandledCudaError"
)
# What a rank says when another one has gone: gloo (its file names and timeouts), NCCL, torch's
# TCPStore, torch.distributed's monitored barrier, and torch.multiprocessing.spawn() about its
# children. Only these libraries' own words: a program has timeouts and connections of other kinds.
LOST_PEER = re.compile(
    r"(pair|buffer|context)\.cc|Connection (closed|reset) by (remote )?peer"
    r"|Timed out waiting \d+ms|remote process exited or there was a network error"
    r"|ncclRemoteError|communicator was aborted|ProcessGroupNCCL|Watchdog caught collective"
    r"|TCPStore|DistNetworkError|DistStoreError"
    r"|failed to pass monitoredBarrier|ProcessExitedException|process \d+ terminated"
)

# Signals that may reach a rank because a peer failed: launchers end the others by SIGTERM, and the
# threads that watch collectives abort. No other signal does.
FOLLOW = {-signal.SIGTERM, -signal.SIGABRT, -signal.SIGINT}
MOST_RANKS = 1024  # of one machine, whose words are read
# torch.multiprocessing.spawn() re-raises a child's exception, and later kills ranks that stay.
NO_RANK = -1
RAISED_IN_CHILD = "ProcessRaisedException"

# The names that appear in the error if a script needs torchrun and is started without it: torch's
# env:// rendezvous and a script's own os.environ["RANK"] both name the missing variable.
WANTS_LAUNCHER = re.compile(r"\b(LOCAL_)?(RANK|WORLD_SIZE)\b|\bMASTER_(ADDR|PORT)\b")

# Known by name: the classes are in inside/, which this room may not import.
MENDS = {
    "ForkTrainingError": (
        "it trains in processes that it forks itself (os.fork, multiprocessing), or in several "
        "that do not train together, and neither can be measured. Start the ranks of one training "
        "by torch.multiprocessing.spawn(), or search a script that trains in one process; autotune "
        "can start several ranks of it: --tune devices"
    ),
    "CapturedStepError": (
        "it captures its optimizer's step as a CUDA graph (torch.cuda.graph), and what a graph "
        "repeats can be neither seen nor changed. Search it without the capture"
    ),
}
UNMEASURED = re.compile(rf"\b({'|'.join(MENDS)})\b")

# What input(), getpass (EOFError) and click.prompt() (Abort) raise if nobody answers
NO_ANSWER = re.compile(r"(\w+\.)*(EOFError|Abort)\b")
# A program that checks the answer itself and exits does so at once. So an exit this soon after it
# read its input counts as caused by the missing answer.
ASKED_S = 1.0

# Part of the sentence that inside/seams/by_hand.py sends if it saw training but no step.
UNSEEN = "autotune recognises a step"

# The errors of a write that a fence refuses. Overlays give EROFS (30), EOVERFLOW (75, the file of
# another owner) and EXDEV (18); Landlock gives EACCES (13) and EPERM (1).
FENCED_OFF = re.compile(
    r"\[Errno (30|75|18|13|1)\]|\[Errno 28\] autotune|Read-only file system|readonly database"
    r"|Value too large for defined"
)

# How many steps one run of a program must make: three show which loaders train, four are observed,
# one is discarded, and the next one counts. A step ends only when the program requests the next
# batch, and after its last step the program may request none: one more.
MIN_STEPS = 10


NO_ROOM = "{name} does not fit as it is written: {reason}"
OPEN_READ_ONLY = (
    "A file that is opened for change counts whole: open data read-only. Or allow more with "
    "--max-scratch 20G, or name a larger disk: --scratch-dir FOLDER."
)
TOO_FEW = (
    f"One run of a program needs {MIN_STEPS} steps to be observed and measured. Is this the "
    "training script? Give it more data or epochs."
)
SMALLER = "Make its batch or its model smaller first."
# What a program that does not train as it is written is told, by how it ended: what happened, and
# what to do
COMPLAINTS = {
    Outcome.RAN_OUT: (
        "There is nothing to measure in {name}: {reason}",
        TOO_FEW,
    ),
    Outcome.INTERRUPTED: ("Stopped before {name} was measured; there is nothing to report", ""),
    Outcome.OUT_OF_MEMORY: (NO_ROOM, SMALLER),
    Outcome.HOST_OUT_OF_MEMORY: (NO_ROOM, SMALLER),
    Outcome.SHARED_MEMORY: (NO_ROOM, ""),
    Outcome.HUNG: (
        "{name} hangs: {reason}",
        "Run it once without autotune, to see whether it hangs there too.",
    ),
    Outcome.SCRATCH_FULL: ("{name} writes more than there is room for: {reason}", OPEN_READ_ONLY),
}
UNSEEN_MEND = (
    "Have an optimizer of torch.optim make the updates, or write them in place: "
    "parameter.copy_(new) under torch.no_grad()."
)


def from_exception(ended: Ended) -> Ending:
    """Return the ending of a program whose rig could still report how it ended.

    Without an exception the outcome is ``RAN_OUT``. Errors about memory are recognised by their
    message; every other exception is ``CRASHED``, with the first line of its text as the reason.
    """
    text, traceback = ended.exception, ended.traceback
    if RAISED_IN_CHILD in text.partition(":")[0]:  # it ends with the child's whole traceback
        begin = text.find("Traceback (most recent call last)")
        last = [line for line in text[begin:].splitlines() if line and not line.startswith(" ")]
        text, traceback = (
            (last[-1], text[begin:].strip()) if begin >= 0 and last else (text, traceback)
        )
    if not text:
        reason = f"the program ended after {ended.steps} steps"
        ending = Ending(Outcome.RAN_OUT, f"{reason}: {ended.unseen}" if ended.unseen else reason)
    elif named := UNMEASURED.search(text):
        ending = Ending(Outcome.CRASHED, MENDS[named[1]])
    else:
        found = ((outcome, reason) for spelt, outcome, reason in ROOM if spelt.search(text))
        outcome, reason = next(found, (Outcome.CRASHED, text.splitlines()[0][:300]))
        if ended.is_device_full and VEILED.search(text):
            outcome, reason = Outcome.OUT_OF_MEMORY, "the device ran out of memory"
        ending = Ending(outcome, reason, traceback)
    return replace(
        ending,
        steps=ended.steps,
        steps_under_config=ended.steps_under_config,
        suspect=ended.suspect,
    )


def having_asked(ending: Ending, ago_s: float, prompt: str) -> Ending:
    """Return the ending of a program that had read its standard input, with that as the cause.

    A trial's input is empty, so a program that needs an answer raises ``EOFError``, or it checks
    the answer itself and exits. An ending that looks otherwise is returned unchanged: one that is
    not a crash, or another exception more than ``ASKED_S`` after the program read its input.
    """
    at_end = NO_ANSWER.match(ending.reason) is not None or ago_s < ASKED_S
    if ending.outcome is not Outcome.CRASHED or not at_end:
        return ending
    question = f' ("{prompt}")' if prompt else ""
    reason = f"it asks for input{question}, got none and ended: {ending.reason}"
    return replace(ending, reason=reason, cause=Cause.INPUT)


def from_ranks(
    words: Sequence[Ended], codes: Mapping[int, int], exit_code: int | None, log_tail: str
) -> Ending:
    """Return the ending of a program from the reports and exit codes of all its ranks.

    If one rank fails, the others do too, because their collectives fail. Which one was the cause:

    - a rank that died of a signal that no peer's failure sends;
    - else the rank that reported first, those that report a lost peer left out;
    - else a rank that ended without a report. It comes after the others, because a program may
      catch the lost connection and end by ``os._exit(1)``;
    - else the rank that reported first.
    """
    silent = {r: c for r, c in codes.items() if r not in {w.rank for w in words}}
    ended = {r: c for r, c in silent.items() if c not in {0, -signal.SIGTERM}}
    killed = {r: c for r, c in ended.items() if c < 0 and c not in FOLLOW}
    in_order = sorted(words, key=lambda word: word.at_s)
    # neither came to its end nor failed because another one had gone
    reasons = [w for w in in_order if w.exception and not LOST_PEER.search(w.exception)]
    if any(RAISED_IN_CHILD in word.exception for word in words):
        killed = {}
    if killed or (ended and not reasons):
        rank, code = next(iter((killed or ended).items()))
        ending = from_exit_code(code, log_tail)
        return replace(ending, reason=ending.reason.replace("the process", f"rank {rank}"))
    if in_order:
        return from_exception(next(iter(reasons or in_order)))
    if exit_code is None:
        return Ending(Outcome.CRASHED, "it closed its connection to autotune", log_tail)
    return from_exit_code(exit_code, log_tail)


def left_words(folder: Path) -> list[Ended]:
    """Return the final messages of processes that have no connection to the parent.

    The program may write to that folder too: what is no message counts as a process that left none.
    """
    words = []
    paths = (path for path in folder.glob("ended-*") if path.suffix != ".part")
    for path in islice(paths, MOST_RANKS):
        with suppress(RigError):
            word = decode(access.read_left(path) or b"")
            words += [word] if isinstance(word, Ended) else []
    return words


def started_words(word: Ended | None, folder: Path) -> list[Ended]:
    """Return the final messages of a rig whose program may have started ranks itself."""
    left = left_words(folder)
    if word is None:
        return left
    word = replace(word, rank=NO_RANK)  # its children are the ranks, from 0
    if word.exception and not any(other.exception for other in left):
        return [word]
    return [word, *left]


def exit_codes(path: Path) -> dict[int, int]:
    """Return the exit codes of failed ranks, by rank, from the launcher's file.

    Empty without such a file, or if the program has written something else there.
    """
    try:
        return _codes().validate_json(access.read_left(path) or b"{}")
    except ValidationError:
        return {}


@cache  # built once, at the first program that fails
def _codes() -> TypeAdapter[dict[int, int]]:
    return TypeAdapter(dict[int, int])


def from_exit_code(code: int, log_tail: str) -> Ending:
    """Return the ending of a rig that died before it could report.

    SIGKILL counts as host memory, because the kernel's out-of-memory killer sends it; SIGBUS counts
    as shared memory, because writing to a full ``/dev/shm`` raises it.
    """
    if code >= 0:
        return Ending(Outcome.CRASHED, f"the process exited with code {code}", log_tail)
    name = next((s.name for s in signal.Signals if s == -code), f"signal {-code}")
    killed = "the process was killed (SIGKILL), as the kernel does when host memory runs out"
    if -code == signal.SIGKILL:
        return Ending(Outcome.HOST_OUT_OF_MEMORY, killed, log_tail)
    if -code == signal.SIGBUS:
        return Ending(Outcome.SHARED_MEMORY, f"{name}: {SHM_MEND}", log_tail)
    return Ending(Outcome.CRASHED, f"the process died of {name}", log_tail)


def is_settled(program: Program, ending: Ending) -> bool:
    """Tell whether the cause of a failure is certain, so that another start would show no more.

    True for a program whose steps cannot be measured, and for one that needs a launcher.
    """
    return ending.reason in MENDS.values() or _wants_launcher(program, ending)


def is_fenced_off(ending: Ending) -> bool:
    """Tell whether a program may have failed because a fence refused a write.

    The errors are the kernel's ordinary ones, so it may also fail this way without a fence.
    """
    return FENCED_OFF.search(ending.reason) is not None


def _wants_launcher(program: Program, ending: Ending) -> bool:
    """Tell whether a program failed because no launcher set the variables that ranks read."""
    return program.ranks is None and WANTS_LAUNCHER.search(ending.reason) is not None


def program_error(program: Program, ending: Ending) -> ProgramError:
    """Return the error that ends a search: a program fails, or does not train, as it is written."""
    name, reason, printed = program.name, ending.reason.rstrip("."), ending.program_traceback
    if ending.reason in MENDS.values():
        why, _, mend = ending.reason.partition(". ")
        return ProgramError(f"{name} cannot be searched: {why}", mend=f"{mend}.")
    if ending.outcome not in COMPLAINTS:
        return _crash(program, ending)
    said, mend = COMPLAINTS[ending.outcome]
    if ending.outcome is Outcome.RAN_OUT and UNSEEN in reason:
        mend = UNSEEN_MEND
    command = program.typed if ending.outcome is Outcome.HUNG else ""
    kind = NothingMeasured if ending.outcome is Outcome.INTERRUPTED else ProgramError
    return kind(said.format(name=name, reason=reason), printed, mend=mend, command=command)


def _crash(program: Program, ending: Ending) -> ProgramError:
    name, reason = program.name, ending.reason

    def told(headline: str, *, alone: str = "", mend: str = "", command: str = "") -> ProgramError:
        printed = ending.program_traceback
        return ProgramError(headline, printed, alone=alone, mend=mend, command=command)

    if is_fenced_off(ending):
        return told(
            f"{name} failed when it wrote a file: {reason}",
            mend="If that happens without autotune too, mend it first. If not, the fence around "
            "trials forbids that write: write below the working directory or a folder of yours, "
            "or try --fence landlock.",
        )
    if _wants_launcher(program, ending):
        return told(
            f"{name} wants to be started by a launcher ({reason})",
            mend="Say how many ranks to start:",
            command=f"autotune search --nproc-per-node 2 {program}",
        )
    # Who is to blame is known only if a second start, without autotune's hooks, showed it.
    match ending.cause:
        case Cause.PROGRAM:
            is_missing = reason.startswith("ModuleNotFoundError")
            where = f"Does {sys.executable} belong to the program's environment?"
            return told(
                f"{name} fails by itself, before autotune changed anything: {reason}",
                alone=ending.evidence,
                mend=where if is_missing else "",
                command=program.typed,
            )
        case Cause.AUTOTUNE:
            return told(
                f"{name} fails under autotune only: {reason}",
                alone=ending.evidence,
                # Some reasons are autotune's own, with their mend
                mend="Unless that names a mend, it is a defect of autotune. Report it with the "
                "lines above, what the program does there, and this:",
                command="autotune doctor --report",
            )
        case Cause.INPUT:
            mend = "Nobody can type in a trial: pass the answer by a flag, a file or a variable."
            mend = f"{ending.evidence}." if ending.evidence else mend
            return told(f"{name} cannot be measured: {reason}", mend=mend)
        case Cause.UNCLEAR | None:
            return told(
                f"{name} failed under autotune, and it is unclear whether it does so by itself: "
                f"{reason}",
                alone=ending.evidence,
                mend="Run it once without autotune: if it trains, that is a defect of autotune, "
                "and its authors want to know.",
                command=program.typed,
            )
        case _:
            assert_never(ending.cause)
