"""How a rig ended is told apart: memory of the device, of the host, shared memory, or a crash."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.files import access
from autotune.measurement.outcome import Ending, Outcome
from autotune.rig.failures import (
    exit_codes,
    from_exception,
    from_exit_code,
    from_ranks,
    is_settled,
    program_error,
    started_words,
)
from autotune.rig.open_rig import last_line_of
from autotune.rig.wire import Ended, encode
from tests.gpu_fakes import CAPTURES_A_STEP
from tests.made import PROGRAM
from tests.rigging import never, rig_on

# As traceback.format_exception_only() gives them, which is what a rig sends
SAID = {
    Outcome.OUT_OF_MEMORY: (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB.",
        "RuntimeError: MPS backend out of memory (MPS allocated: 17.53 GB, …)",
        "RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be …",
        "RuntimeError: CUDA driver error: out of memory",
        "RuntimeError: HIP error: out of memory",
        "RuntimeError: Triton Error [CUDA]: out of memory",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`",
        "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
        "torch.distributed.DistBackendError: NCCL error in: … Cuda failure 2 'out of memory'",
        "torch.distributed.DistBackendError: NCCL error in: … Cuda failure 'out of memory'",
        "torch.distributed.DistBackendError: NCCL error in: … HIP failure 2 'out of memory'",
        "torch.AcceleratorError: CUDA error: out of memory",
        "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasLtMatmul(…)`",
        "RuntimeError: CUDA error: HIPBLAS_STATUS_ALLOC_FAILED when calling `hipblasCreate(…)`",
        "RuntimeError: cusolver error: CUSOLVER_STATUS_ALLOC_FAILED, when calling `…Create(…)`",
        "RuntimeError: cuFFT error: CUFFT_ALLOC_FAILED",
    ),
    Outcome.HOST_OUT_OF_MEMORY: (
        "RuntimeError: [enforce fail at …] DefaultCPUAllocator: can't allocate memory",
        "MemoryError",
        "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 745. GiB for an array",
        "OSError: [Errno 12] Cannot allocate memory",
        "RuntimeError: unable to mmap 1024 bytes from file <x>: Cannot allocate memory (12)",
        "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Killed. ",
    ),
    Outcome.SHARED_MEMORY: (
        "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Bus error. …",
        "RuntimeError: unable to allocate shared memory(shm) for file </torch_1_2_3>: Success (0)",
        "RuntimeError: unable to write to file </torch_4711_1_0>: No space left on device (28)",
        "OSError: [Errno 28] No space left on device: '/dev/shm/psm_1f2e3d4c'",
    ),
    Outcome.SCRATCH_FULL: (
        "OSError: [Errno 28] No space left on device: '/data/checkpoint.pt'",
        "OSError: [Errno 122] Disk quota exceeded",
    ),
    Outcome.CRASHED: (
        "RuntimeError: cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This error may appear if you …",
        "RuntimeError: CUDA error: device-side assert triggered",
        "OutOfResources: out of resource: shared memory, Required: 264192, Hardware limit: 232448.",
        "RuntimeError: unable to open shared memory object </torch_1_2>: Too many open files (24)",
        "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Segmentation fault. ",
        "ValueError: memory_efficient takes true or false",
        "SystemExit: 1",
    ),
}


def ended(exception: str, exit_code: int = 1) -> Ended:
    return Ended(steps=17, exception=exception, traceback="Traceback: …", exit_code=exit_code)


def test_what_may_have_other_causes_is_about_memory_where_the_device_has_none_left() -> None:
    for said in (
        "RuntimeError: GET was unable to find an engine to execute this computation",
        "RuntimeError: FIND was unable to find an engine to execute this computation",
        "RuntimeError: cuDNN error: CUDNN_STATUS_INTERNAL_ERROR",
        "RuntimeError: CUDA error: CUBLAS_STATUS_NOT_INITIALIZED when calling `cublasCreate(…)`",
        "RuntimeError: CUDA error: HIPBLAS_STATUS_NOT_INITIALIZED when calling `hipblasCreate(…)`",
        "RuntimeError: cusolver error: CUSOLVER_STATUS_INTERNAL_ERROR, when calling `…Create(…)`",
        "DistBackendError: NCCL error … ncclUnhandledCudaError: Call to CUDA function failed.",
    ):
        assert from_exception(ended(said)).outcome is Outcome.CRASHED
        full = replace(ended(said), is_device_full=True)
        assert from_exception(full).outcome is Outcome.OUT_OF_MEMORY
    other = replace(ended("ValueError: no such column"), is_device_full=True)
    assert from_exception(other).outcome is Outcome.CRASHED


@pytest.mark.parametrize("outcome", SAID)
def test_out_of_memory_is_told_apart_from_a_crash_however_it_is_spelt(outcome: Outcome) -> None:
    for text in SAID[outcome]:
        ending = from_exception(ended(f"{text}\nsecond line"))
        assert ending.outcome is outcome, text
        if outcome is Outcome.CRASHED:
            assert ending.reason == text.splitlines()[0]
            assert ending.program_traceback == "Traceback: …"
        if outcome is Outcome.SHARED_MEMORY:
            assert "--shm-size" in ending.reason
            said = str(program_error(PROGRAM, ending))
            assert said.startswith(f"train does not fit as it is written: {ending.reason}")


def test_an_ending_without_an_exception_is_read_from_steps_and_code_alone() -> None:
    """What it printed, "Error" or not, is not asked."""
    ending = from_exception(ended("", 1))
    assert (ending.outcome, "17 steps" in ending.reason) == (Outcome.RAN_OUT, True)
    for code, outcome, said in (
        (137, Outcome.CRASHED, "code 137"),
        (-signal.SIGKILL, Outcome.HOST_OUT_OF_MEMORY, "SIGKILL"),
        (-signal.SIGBUS, Outcome.SHARED_MEMORY, "SIGBUS"),
        (-signal.SIGSEGV, Outcome.CRASHED, "SIGSEGV"),
        (-signal.SIGRTMIN - 1, Outcome.CRASHED, "signal"),
    ):
        ending = from_exit_code(code, "CUDA out of memory")
        assert ending.outcome is outcome
        assert said in ending.reason
        assert ending.program_traceback == "CUDA out of memory"


# What the ranks of a program that starts them itself leave: last words by rank, exit codes, and
# what torch says in the first process; then what the user is told
LEFT = {
    "an exception, after which a peer aborts": (
        {1: "torch.OutOfMemoryError: CUDA out of memory."},
        {0: -6, 1: 1},
        (Outcome.OUT_OF_MEMORY, "the device ran out of memory"),
    ),
    "os._exit(3), after which a peer raises": (
        {0: "RuntimeError: [..pair.cc:544] Connection closed by peer [127.0.0.1]:5"},
        {0: 1, 1: 3},
        (Outcome.CRASHED, "rank 1 exited with code 3"),
    ),
    "os._exit(3), after which NCCL's watchdog waits in vain": (
        {0: "DistBackendError: [Rank 0] Watchdog caught collective operation timeout: WorkNCCL(…)"},
        {0: 1, 1: 3},
        (Outcome.CRASHED, "rank 1 exited with code 3"),
    ),
    "an exception that is reported after a peer's lost connection": (
        {0: "ValueError: no such column", 1: "RuntimeError: Connection closed by peer"},
        {0: 1, 1: 1},
        (Outcome.CRASHED, "ValueError: no such column"),
    ),
    "a segmentation fault, and a barrier that waits in vain": (
        {0: "RuntimeError: Rank 1 did not answer"},
        {0: 1, 1: -11},
        (Outcome.CRASHED, "rank 1 died of SIGSEGV"),
    ),
    "a kill of the first rank": (
        {},
        {0: -9, 1: -15},
        (Outcome.HOST_OUT_OF_MEMORY, "rank 0 was killed (SIGKILL)"),
    ),
    "os._exit(3)": ({}, {1: 3, 0: -15}, (Outcome.CRASHED, "rank 1 exited with code 3")),
    "its own end": ({0: "", 1: ""}, {}, (Outcome.CRASHED, "ProcessExitedException: rank 1")),
}


@pytest.mark.parametrize("name", LEFT)
def test_how_ranks_ended_that_a_program_started_itself_is_told_apart(
    name: str, tmp_path: Path
) -> None:
    texts, codes, (outcome, reason) = LEFT[name]
    for rank, text in texts.items():
        # the one whose failure makes the others fail speaks first
        word = Ended(30, text, "", int(bool(text)), rank, at_s=10.0 - rank)
        (tmp_path / f"ended-{rank}").write_bytes(encode(word))
    first = Ended(0, "ProcessExitedException: rank 1", "", 1, at_s=20.0)
    ending = from_ranks(started_words(first, tmp_path), codes, 1, "")
    assert ending.outcome is outcome
    assert ending.reason.startswith(reason)


def _fifo(path: Path) -> None:
    os.mkfifo(path)


ODD_FILES: dict[str, Callable[[Path], object]] = {
    "a pipe that nobody writes to": _fifo,
    "a link to what never ends": lambda path: path.symlink_to("/dev/zero"),
    "a folder": Path.mkdir,
    "more than a process says": lambda path: path.write_bytes(b" " * (access.MOST_LEFT_BYTES + 1)),
    "no JSON": lambda path: path.write_bytes(b"\xff{"),
    "a thousand brackets": lambda path: path.write_text("[" * 100_000),
    "JSON of another kind": lambda path: path.write_text('[{"a": []}]'),
    "numbers that are none": lambda path: path.write_text('{"one": "two", "3": null}'),
}


@pytest.mark.parametrize("odd", ODD_FILES)
def test_what_a_program_puts_into_its_rigs_folder_holds_nobody_up(odd: str, tmp_path: Path) -> None:
    for name in ("ended-1", "codes"):
        ODD_FILES[odd](tmp_path / name)
    word = Ended(0, "ValueError: no such column", "", 1)
    words = started_words(word, tmp_path)
    ending = from_ranks(words, exit_codes(tmp_path / "codes"), 1, "")
    assert (ending.outcome, ending.reason) == (Outcome.CRASHED, "ValueError: no such column")


@pytest.mark.slow
@pytest.mark.usefixtures("warm_starts")
def test_a_step_that_is_captured_as_a_cuda_graph_is_refused_by_that_name(tmp_path: Path) -> None:
    program = tmp_path / "captures.py"
    program.write_text(CAPTURES_A_STEP, encoding="utf-8")
    with rig_on(tmp_path, str(program)) as rig:
        ending = rig.open(None, never, 60.0)
    assert isinstance(ending, Ending)
    assert is_settled(PROGRAM, ending), "another start would show no more"
    said = str(program_error(PROGRAM, ending))
    assert said.startswith(f"{PROGRAM.name} cannot be searched: it captures its optimizer")


def test_what_a_spawned_process_raised_is_read_from_what_spawn_raises(tmp_path: Path) -> None:
    """A rank that spawn kills in the end, because it ignored SIGTERM, is not what failed."""
    spawn = "torch.multiprocessing.spawn.ProcessRaisedException: "
    raised = (
        f"{spawn}\n\n-- Process 1 terminated with the following error:\n"
        'Traceback (most recent call last):\n  File "train.py", line 3, in work\n'
        "    raise ValueError('no such column')\nValueError: no such column\n"
    )
    ending = from_exception(Ended(0, raised, "Traceback of mp.spawn()", 1))
    assert ending.reason == "ValueError: no such column"
    assert ending.line.endswith("train.py:3")
    odd = f"{spawn}nothing else"
    assert from_exception(Ended(0, odd, "Traceback: …", 1)).reason == odd
    first = Ended(30, "ValueError: no such column", "", 1, 1, at_s=1.0)
    (tmp_path / "ended-1").write_bytes(encode(first))
    words = started_words(Ended(0, raised, "", 1, at_s=30.0), tmp_path)
    assert from_ranks(words, {0: -9, 1: 1}, 1, "").reason == "ValueError: no such column"


def test_a_program_that_ended_in_its_ranks_made_their_steps(tmp_path: Path) -> None:
    (tmp_path / "ended-0").write_bytes(encode(Ended(30, "", "", 0, at_s=1.0)))
    words = started_words(Ended(0, "", "", 0, at_s=2.0), tmp_path)
    assert from_ranks(words, {}, 0, "").reason == "the program ended after 30 steps"


def test_the_last_line_of_a_log_is_one_line_that_steers_no_terminal(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    assert last_line_of(log) == ""
    for printed, line in (
        ("", ""),
        ("epoch 1\nepoch 2\n\n", "epoch 2"),
        ("10%\r20%\r30%", "30%"),
        ("\x1b[1;32mready\x1b[0m\x1b]0;title\x07\x9b1m\n", "ready1m"),
        ("x" * 9999, "x" * 200),
    ):
        log.write_text(printed)
        assert last_line_of(log) == line
