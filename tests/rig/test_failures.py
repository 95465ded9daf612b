"""How a rig ended is told apart: memory of the device, of the host, shared memory, or a crash."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from autotune.measurement.outcome import Outcome
from autotune.rig.failures import (
    from_exception,
    from_exit_code,
    from_ranks,
    program_error,
    started_words,
)
from autotune.rig.wire import Ended, encode
from tests.made import PROGRAM

# As traceback.format_exception_only() gives them, which is what a rig sends.
DEVICE_MEMORY = {
    "torch": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a "
    "total capacity of 15.77 GiB of which 1.02 GiB is free.",
    "torch on ROCm": "torch.OutOfMemoryError: HIP out of memory. Tried to allocate 2.00 GiB.",
    "torch on MPS": "RuntimeError: MPS backend out of memory (MPS allocated: 17.53 GB, …)",
    "CUDA runtime": "RuntimeError: CUDA error: out of memory\nCUDA kernel errors might be …",
    "CUDA driver": "RuntimeError: CUDA driver error: out of memory",
    "HIP runtime": "RuntimeError: HIP error: out of memory",
    "Triton": "RuntimeError: Triton Error [CUDA]: out of memory",
    "cuBLAS": "RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling "
    "`cublasCreate(handle)`",
    "cuDNN": "RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED",
}
HOST_MEMORY = {
    "torch on the CPU": "RuntimeError: [enforce fail at alloc_cpu.cpp:121] err == 0. "
    "DefaultCPUAllocator: can't allocate memory: you tried to allocate 4000000000000 bytes. "
    "Error code 12 (Cannot allocate memory)",
    "Python": "MemoryError",
    "numpy": "numpy._core._exceptions._ArrayMemoryError: Unable to allocate 745. GiB for an array "
    "with shape (100000000000,) and data type float64",
    "fork": "OSError: [Errno 12] Cannot allocate memory",
    "mmap": "RuntimeError: unable to mmap 1024 bytes from file <x>: Cannot allocate memory (12)",
    "a killed worker": "RuntimeError: DataLoader worker (pid 4711) is killed by signal: Killed. ",
}
SHARED_MEMORY = {
    "a worker with a bus error": "RuntimeError: DataLoader worker (pid 4711) is killed by signal: "
    "Bus error. It is possible that dataloader's workers are out of shared memory. Please try to "
    "raise your shared memory limit.",
    "allocate": "RuntimeError: unable to allocate shared memory(shm) for file </torch_1_2_3>: "
    "Success (0)",
    "write": "RuntimeError: unable to write to file </torch_4711_1396182366_0>: No space left on "
    "device (28)",
    "a file in it": "OSError: [Errno 28] No space left on device: '/dev/shm/psm_1f2e3d4c'",
}
CRASHES = {
    "cuDNN does not support it": "RuntimeError: cuDNN error: CUDNN_STATUS_NOT_SUPPORTED. This "
    "error may appear if you passed in a non-contiguous input.",
    "a device assert": "RuntimeError: CUDA error: device-side assert triggered",
    "a full disk": "OSError: [Errno 28] No space left on device: '/data/checkpoint.pt'",
    "too many open files": "RuntimeError: unable to open shared memory object </torch_1_2_3> in "
    "read-write mode: Too many open files (24)",
    "a segmentation fault in a worker": "RuntimeError: DataLoader worker (pid 4711) is killed by "
    "signal: Segmentation fault. ",
    "memory in another sense": "ValueError: memory_efficient takes true or false",
    "sys.exit(1)": "SystemExit: 1",
}


SIGNALS = (signal.SIGKILL, signal.SIGBUS, signal.SIGSEGV)


def ended(exception: str, exit_code: int = 1) -> Ended:
    return Ended(steps=17, exception=exception, traceback="Traceback: …", exit_code=exit_code)


@pytest.mark.parametrize("text", DEVICE_MEMORY.values(), ids=DEVICE_MEMORY.keys())
def test_every_spelling_of_device_memory_is_out_of_memory(text: str) -> None:
    assert from_exception(ended(text)).outcome is Outcome.OUT_OF_MEMORY


@pytest.mark.parametrize("text", HOST_MEMORY.values(), ids=HOST_MEMORY.keys())
def test_every_spelling_of_host_memory_is_host_out_of_memory(text: str) -> None:
    assert from_exception(ended(text)).outcome is Outcome.HOST_OUT_OF_MEMORY


@pytest.mark.parametrize("text", SHARED_MEMORY.values(), ids=SHARED_MEMORY.keys())
def test_every_spelling_of_shared_memory_names_the_mend(text: str) -> None:
    ending = from_exception(ended(text))
    assert ending.outcome is Outcome.SHARED_MEMORY
    assert "/dev/shm" in ending.reason
    assert "--shm-size" in ending.reason
    said = str(program_error(PROGRAM, ending))
    assert said.startswith(f"train does not fit as it is written: {ending.reason}")
    assert "defect" not in said


@pytest.mark.parametrize("text", CRASHES.values(), ids=CRASHES.keys())
def test_out_of_memory_is_told_apart_from_a_crash(text: str) -> None:
    ending = from_exception(ended(f"{text}\nsecond line"))
    assert ending.outcome is Outcome.CRASHED
    assert ending.reason == text.splitlines()[0]
    assert ending.program_traceback == "Traceback: …"


def test_an_ending_without_an_exception_is_read_from_steps_and_code_alone() -> None:
    """What it printed, "Error" or not, is not asked."""
    ending = from_exception(ended("", 1))
    assert ending.outcome is Outcome.RAN_OUT
    assert "17 steps" in ending.reason
    silent = from_exit_code(137, "CUDA out of memory")
    assert silent.outcome is Outcome.CRASHED
    assert "code 137" in silent.reason
    assert from_exit_code(-signal.SIGRTMIN - 1, "").outcome is Outcome.CRASHED


@pytest.mark.parametrize("signal_number", SIGNALS)
def test_a_rig_that_dies_of_a_signal_is_read_by_the_code_that_subprocess_gives(
    tmp_path: Path, signal_number: signal.Signals
) -> None:
    victim = f"import os; os.kill(os.getpid(), {int(signal_number)})"
    argv = [sys.executable, "-c", victim]
    code = subprocess.run(argv, check=False, cwd=tmp_path).returncode  # a core file goes there
    expected = {
        signal.SIGKILL: Outcome.HOST_OUT_OF_MEMORY,
        signal.SIGBUS: Outcome.SHARED_MEMORY,
        signal.SIGSEGV: Outcome.CRASHED,
    }
    ending = from_exit_code(code, "the last lines")
    assert ending.outcome is expected[signal_number]
    assert signal_number.name in ending.reason
    assert ending.program_traceback == "the last lines"


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
    "a kill that a peer hides behind an error of its own": (
        {0: "TrainingError: step 3 failed"},
        {0: 1, 1: -9},
        (Outcome.HOST_OUT_OF_MEMORY, "rank 1 was killed (SIGKILL)"),
    ),
    "os._exit(3)": ({}, {1: 3, 0: -15}, (Outcome.CRASHED, "rank 1 exited with code 3")),
    "a kill, and what follows from it": (
        {},
        {1: -9, 0: -6},
        (Outcome.HOST_OUT_OF_MEMORY, "rank 1 was killed (SIGKILL)"),
    ),
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


@pytest.mark.usefixtures("warm_starts")
def test_what_a_spawned_process_raised_is_read_from_what_spawn_raises(tmp_path: Path) -> None:
    """With torch's own message, so that it is the same failure with autotune's hooks or without."""
    script = tmp_path / "train.py"
    script.write_text(
        "import traceback, torch.multiprocessing as mp\n"
        "def work(rank):\n"
        "    raise ValueError('no such column')\n"
        "if __name__ == '__main__':\n"
        "    try:\n"
        "        mp.spawn(work, nprocs=2)\n"
        "    except Exception as error:\n"
        "        print(''.join(traceback.format_exception_only(error)))\n"
    )
    run = subprocess.run(
        [sys.executable, script], check=True, capture_output=True, text=True, cwd=tmp_path
    )
    ending = from_exception(Ended(0, run.stdout, "Traceback of mp.spawn()", 1))
    assert ending.reason == "ValueError: no such column"
    assert ending.line.endswith("train.py:3")
    odd = "torch.multiprocessing.spawn.ProcessRaisedException: nothing else"
    assert from_exception(Ended(0, odd, "Traceback: …", 1)).reason == odd


def test_a_rank_that_spawn_kills_in_the_end_is_not_what_failed(tmp_path: Path) -> None:
    """It ignored SIGTERM, waiting in a collective for the rank that raised."""
    raised = "torch.multiprocessing.spawn.ProcessRaisedException: -- Process 1 terminated with"
    (tmp_path / "ended-1").write_bytes(
        encode(Ended(30, "ValueError: no such column", "", 1, 1, at_s=1.0))
    )
    words = started_words(Ended(0, raised, "", 1, at_s=30.0), tmp_path)
    ending = from_ranks(words, {0: -9, 1: 1}, 1, "")
    assert ending.reason == "ValueError: no such column"


def test_a_program_that_came_to_its_end_in_its_ranks_made_their_steps(tmp_path: Path) -> None:
    (tmp_path / "ended-0").write_bytes(encode(Ended(30, "", "", 0, at_s=1.0)))
    words = started_words(Ended(0, "", "", 0, at_s=2.0), tmp_path)
    assert from_ranks(words, {}, 0, "").reason == "the program ended after 30 steps"
