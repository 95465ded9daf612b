"""How a rig ended: its exception, exit code and log become an Outcome and one line for the user.

Covered: every spelling of out-of-memory that PyTorch, CUDA, HIP and Python use; kills by the
kernel; shared memory; the program's own exceptions. Not covered: a program that catches its own
out-of-memory error and goes on.
"""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from autotune.errors import ProgramError
from autotune.measurement.outcome import Cause, Ending, Outcome
from autotune.program.program import Program
from autotune.rig.complaint import complaint
from autotune.rig.wire import Ended, decode

# Spellings: torch.OutOfMemoryError and c10's messages; CUDA and HIP runtime errors; cuBLAS and
# cuDNN handle creation; c10's CPU allocator; Python's own.
DEVICE_MEMORY = re.compile(
    r"OutOfMemoryError|(CUDA|HIP)\]?:?( driver)?( error:)? out of memory|CUBLAS_STATUS_ALLOC_FAILED"
    r"|CUDNN_STATUS_ALLOC_FAILED|hipErrorOutOfMemory|MPS backend out of memory"
)
HOST_MEMORY = re.compile(
    r"DefaultCPUAllocator: (can't|not enough memory)|MemoryError\b"
    r"|\[Errno 12\]|Cannot allocate memory"
)
SHARED_MEMORY = re.compile(
    r"[Bb]us error|insufficient shared memory|unable to (allocate|write|mmap).*shared memory"
    r"|file </torch_\d+.*No space left on device|No space left on device: '/dev/shm|shm_open"
)
LOADER_WORKER_KILLED = re.compile(r"DataLoader worker .* killed by signal: Killed")

# What torch's env:// rendezvous and a script's own os.environ say without torchrun
WANTS_LAUNCHER = re.compile(r"\b(LOCAL_)?(RANK|WORLD_SIZE)\b|\bMASTER_(ADDR|PORT)\b")

# The name of the error in inside/ranks/forks.py
TRAINS_IN_FORKS = re.compile(r"\bForkTrainingError\b")
FORKS_MEND = (
    "it trains in processes that it forks itself (os.fork, multiprocessing), or in several that it "
    "starts, and only ranks of one training can be measured. Start them by "
    "torch.multiprocessing.spawn(), or search a script that trains in one process; autotune starts "
    "several itself: --tune strategy,world_size"
)

# How a program ends that gets no answer: input(), getpass and click.prompt() raise these
NO_ANSWER = re.compile(r"(\w+\.)*(EOFError|Abort)\b")
ASKED_S = 1.0  # before its end: a program that gets no answer and ends by its own word is quick

# In what is said of a program whose training no step was seen of (inside/seams/by_hand.py)
UNSEEN = "a step is seen where"

# What a fence answers where it cannot let a trial write: EROFS, EOVERFLOW (another owner's file),
# EXDEV, and Landlock's EACCES and EPERM
FENCED_OFF = re.compile(
    r"\[Errno (30|75|18|13|1)\]|\[Errno 28\] autotune|Read-only file system|readonly database"
    r"|Value too large for defined"
)

# Of one run: three tell which loaders train, four are observed, one is left out, and the next one
# counts. The last ends where a batch is asked for that is not there, if it is.
MIN_STEPS = 10

SHM_MEND = (
    "shared memory (/dev/shm) is too small. Fewer workers need less; in a container, start it "
    "with a larger --shm-size"
)


def from_exception(ended: Ended) -> Ending:
    """Return the ending of a program that came to its own end."""
    return replace(
        _from_exception(ended),
        steps=ended.steps,
        steps_under_config=ended.steps_under_config,
        suspect=ended.suspect,
    )


def _from_exception(ended: Ended) -> Ending:
    text = ended.exception
    if not text:
        after = f"the program ended after {ended.steps} steps"
        return Ending(Outcome.RAN_OUT, f"{after}: {ended.unseen}" if ended.unseen else after)
    if TRAINS_IN_FORKS.search(text):
        return Ending(Outcome.CRASHED, FORKS_MEND)
    first = text.splitlines()[0][:300]
    for pattern, outcome, line in (
        (SHARED_MEMORY, Outcome.SHARED_MEMORY, SHM_MEND),
        (DEVICE_MEMORY, Outcome.OUT_OF_MEMORY, "the device ran out of memory"),
        (HOST_MEMORY, Outcome.HOST_OUT_OF_MEMORY, "the host ran out of memory"),
        (
            LOADER_WORKER_KILLED,
            Outcome.HOST_OUT_OF_MEMORY,
            "a loader worker was killed: host memory",
        ),
    ):
        if pattern.search(text):
            return Ending(outcome, line, ended.traceback)
    return Ending(Outcome.CRASHED, first, ended.traceback)


def having_asked(ending: Ending, ago_s: float, prompt: str) -> Ending:
    """Return the ending of a program that read its input some time before: by that, if by any.

    Nobody answers a trial: a program that needs an answer ends by an EOFError, or by its own word.
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
    """Return the ending of a program by what its ranks said, and how those ended that did not.

    A rank that dies takes the others with it: their collectives fail. So one that was killed
    without a word is the cause, and else the one that spoke first.

    Args:
        words: Last words, of one process alone at most one.
        codes: Exit codes of ranks that failed, by rank.
        exit_code: Of the process that was started, None when it has not ended.
        log_tail: What was printed last.
    """
    silent = {r: c for r, c in codes.items() if r not in {w.rank for w in words}}
    killed = {r: c for r, c in silent.items() if c not in {0, -signal.SIGTERM}}
    if killed:
        rank, code = next(iter(sorted(killed.items())))
        ending = from_exit_code(code, log_tail)
        return replace(ending, reason=ending.reason.replace("the process", f"rank {rank}"))
    if words:
        return from_exception(min(words, key=lambda word: word.at_s))
    if exit_code is None:
        return Ending(Outcome.CRASHED, "the rig closed its wire", log_tail)
    return from_exit_code(exit_code, log_tail)


def left_words(folder: Path) -> list[Ended]:
    """Return the last words that processes left which do not talk to the parent."""
    paths = [path for path in folder.glob("ended-*") if path.suffix != ".part"]
    return [e for path in paths if isinstance(e := decode(path.read_bytes()), Ended)]


def started_words(word: Ended | None, folder: Path) -> list[Ended]:
    """Return the last words of a rig whose program may have started its ranks itself.

    What went wrong in the first process after all that it started ended well is its own word.

    Args:
        word: Of the first process, None where it had none.
        folder: Where those that the program started leave theirs.
    """
    left = left_words(folder)
    if word is None or (word.exception and not any(other.exception for other in left)):
        return left if word is None else [word]
    return [word, *left]


def exit_codes(path: Path) -> dict[int, int]:
    """Return what the launcher noted of ranks that failed, nothing where none did."""
    try:
        noted = json.loads(path.read_text(encoding="utf-8"))
    except OSError:
        return {}
    return {int(rank): int(code) for rank, code in noted.items()}


def from_exit_code(code: int, log_tail: str) -> Ending:
    """Return the ending of a rig that died without a word; negative codes are signals."""
    if code >= 0:
        return Ending(Outcome.CRASHED, f"the process exited with code {code}", log_tail)
    number = -code
    known = {s.value: s.name for s in signal.Signals}
    name = known.get(number, f"signal {number}")
    match number:
        case signal.SIGKILL:
            return Ending(
                Outcome.HOST_OUT_OF_MEMORY,
                "the process was killed (SIGKILL), as the kernel does when host memory runs out",
                log_tail,
            )
        case signal.SIGBUS:
            return Ending(Outcome.SHARED_MEMORY, f"{name}: {SHM_MEND}", log_tail)
        case _:
            return Ending(Outcome.CRASHED, f"the process died of {name}", log_tail)


def is_settled(program: Program, ending: Ending) -> bool:
    """Tell whether it is clear what a program that failed wants: no other start tells more."""
    return ending.reason == FORKS_MEND or _wants_launcher(program, ending)


def is_fenced_off(ending: Ending) -> bool:
    """Tell whether a program may have failed because a fence let it not write."""
    return FENCED_OFF.search(ending.reason) is not None


def _wants_launcher(program: Program, ending: Ending) -> bool:
    return program.ranks is None and WANTS_LAUNCHER.search(ending.reason) is not None


def program_error(program: Program, ending: Ending) -> ProgramError:
    """Return the error for a program that fails, or does not train, as it is written."""
    if ending.reason == FORKS_MEND:
        return ProgramError(f"{program.name} cannot be searched: {FORKS_MEND}")
    return ProgramError(_complaint(program, ending), ending.program_traceback)


def _complaint(program: Program, ending: Ending) -> str:
    name = program.name
    match ending.outcome:
        case Outcome.RAN_OUT:
            return f"There is nothing to measure in {program}: {ending.reason}{_mend(ending)}"
        case Outcome.INTERRUPTED:
            return (
                f"Stopped before the baseline of {name} was measured; there is nothing to report."
            )
        case Outcome.OUT_OF_MEMORY | Outcome.HOST_OUT_OF_MEMORY:
            return (
                f"{name} does not fit as it is written: {ending.reason}. "
                "Make its batch or its model smaller first."
            )
        case Outcome.HUNG:
            return f"{name} stands still: {ending.reason}. Its last output is above."
        case Outcome.SCRATCH_FULL:
            return (
                f"{name} writes more than its trials may: {ending.reason}. Allow more by "
                "--max-scratch 20G, or name a larger disk: --scratch-dir FOLDER."
            )
        case _:
            return _complaint_of_error(program, ending)


def _mend(ending: Ending) -> str:
    """What to do about a program that made too few steps, or none that can be seen."""
    if UNSEEN in ending.reason:
        return (
            ". Have an optimizer of torch.optim make the updates, or write them in place: "
            "parameter.copy_(new) under torch.no_grad()."
        )
    return (
        f", and one run of a program needs {MIN_STEPS} to be observed and measured. Is this the "
        "training script? Give it more data or epochs."
    )


def _complaint_of_error(program: Program, ending: Ending) -> str:
    name = program.name
    if is_fenced_off(ending):
        return (
            f"{name} ended where it writes: {ending.reason}. If it does that without autotune "
            "too, mend it first. If not, the fence around trials cannot let it write there: "
            "write below the working directory or a folder of yours, or try --fence landlock."
        )
    if _wants_launcher(program, ending):
        return (
            f"{name} wants to be started by a launcher ({ending.reason}). Say how many ranks "
            f"it takes: autotune search --nproc-per-node 2 {program}"
        )
    return complaint(name, ending)
