"""Read ``torchrun …`` and ``python -m torch.distributed.run …``: ranks on one machine.

Covered: the options of torch 2.11 to 2.14 (get_args_parser in torch/distributed/run.py), including
abbreviations and underscores, and their PET_* variables. Not covered: several nodes, and elastic
training.
"""

from __future__ import annotations

import shlex
import subprocess
from dataclasses import replace

from autotune.errors import UsageError
from autotune.program.line.base import Known, Shell
from autotune.program.line.table import Table, Taken

MODULES = frozenset({"torch.distributed.run", "torch.distributed.launcher"})
OLD_MODULE = "torch.distributed.launch"

# In trials, autotune's own launcher decides where ranks meet, how they restart and where they log
WITHOUT_EFFECT = frozenset(
    {
        *("--rdzv-backend", "--rdzv-endpoint", "--rdzv-id", "--rdzv-conf", "--node-rank"),
        *("--master-addr", "--master-port", "--local-addr", "--role"),
        *("--max-restarts", "--monitor-interval", "--start-method", "--event-log-handler"),
        *("--log-dir", "-r", "--redirects", "-t", "--tee", "--log-line-prefix-template"),
        *("--local-ranks-filter", "--duplicate-stdout-filters", "--duplicate-stderr-filters"),
        *("--logs-specs", "--signals-to-handle", "--shutdown-timeout"),
    }
)
TORCHRUN = Table(
    "torchrun",
    valued=WITHOUT_EFFECT | {"--nnodes", "--nproc-per-node", "--numa-binding"},
    switches=frozenset(
        {"--standalone", "-m", "--module", "--no-python", "--run-path", "--virtual-local-rank"}
        | {"-h", "--help", "--use-env"}
    ),
    abbreviates=True,
)
COUNTED = frozenset({"cpu", "gpu", "xpu", "auto"})
COUNT = (
    "import sys; from torch.distributed.run import determine_local_world_size as count; "
    "print(count(sys.argv[1]))"
)
ANSWER_S = 120.0  # generous: the process imports torch, which may lie on a slow network disk
# Options whose loss a user would notice, so a note tells that they are dropped
SAID = ("--max-restarts", "--log-dir", "--redirects", "-r", "--tee", "-t", "--local-ranks-filter")


def take_torchrun(
    words: tuple[str, ...], known: Known, shell: Shell
) -> tuple[tuple[str, ...], Known]:
    """Read torchrun with its options; what each rank runs remains.

    Raises:
        UsageError: The line starts several nodes, or uses an option that autotune's own launcher
            does not support.
    """
    taken = TORCHRUN.take(words[1:])
    _check(taken, known, shell)
    count = taken.last("--nproc-per-node") or known.variable("PET_NPROC_PER_NODE", shell) or "1"
    known = replace(known, ranks=_number(count, known, shell))
    assert known.ranks is not None, "it was read just now"
    if known.ranks > 1 and known.variable("OMP_NUM_THREADS", shell) is None:
        known = known.with_env({"OMP_NUM_THREADS": "1"})  # as torchrun sets it
    left_out = sorted({name for name, _ in taken.options if name in SAID})
    if left_out:
        known = known.with_note(f"{', '.join(left_out)} of torchrun is left out in trials.")
    return started_by(taken, known)


def started_by(taken: Taken, known: Known) -> tuple[tuple[str, ...], Known]:
    """Return the words that each rank runs, by torchrun's options.

    Raises:
        UsageError: No program follows the options.
    """
    if not taken.rest:
        raise UsageError(
            f"'{shlex.join(('torchrun', *taken.words))}' names no program. Name it after the "
            "options: torchrun … train.py"
        )
    if taken.last("--no-python") is not None:
        return taken.rest, known
    # torchrun starts its ranks with "python -u"
    known = replace(known, python_options=(*known.python_options, "-u"), is_python=True)
    if taken.last("-m", "--module") is not None:
        return ("-m", *taken.rest), known
    return taken.rest, known


def take_old_launcher(
    words: tuple[str, ...], known: Known, shell: Shell
) -> tuple[tuple[str, ...], Known]:
    """Read ``python -m torch.distributed.launch --use-env …``, which is the same as torchrun.

    Raises:
        UsageError: Without ``--use-env`` the old launcher adds an argument ``--local-rank`` to each
            rank, which autotune does not do.
    """
    taken = TORCHRUN.take(words[1:])
    if taken.last("--use-env") is None:
        raise UsageError(
            "torch.distributed.launch adds an argument --local-rank to each rank's own, which "
            "torch has deprecated. Have the program read the variable LOCAL_RANK, and search:\n"
            f"{known.to_type((), ('torchrun', *words[1:]), shell)}"
        )
    return take_torchrun(words, known, shell)


def _check(taken: Taken, known: Known, shell: Shell) -> None:
    nodes = taken.last("--nnodes") or known.variable("PET_NNODES", shell) or "1"
    if any(part != "1" for part in nodes.split(":")):  # torchrun also takes a range, MIN:MAX
        raise UsageError(
            f"torchrun --nnodes {nodes} trains on several machines, and a search runs on one. "
            "Search with --nnodes 1; train on several by: autotune run --nnodes N best.yaml …"
        )
    if taken.last("-h", "--help") is not None:
        raise UsageError("torchrun --help trains nothing. Leave it out.")
    for option in ("--numa-binding", "--virtual-local-rank"):
        if taken.last(option) is not None:
            raise UsageError(f"autotune does not start ranks with {option}. Leave it out.")


def _number(text: str, known: Known, shell: Shell) -> int:
    """Return the number of ranks.

    ``cpu``, ``gpu``, ``xpu`` and ``auto`` are counted by torch itself, in a separate process
    because the parent must not import torch.

    Raises:
        UsageError: The text is not a number and not one of these words, or torch cannot count.
    """
    if text.isdecimal() and int(text) > 0:
        return int(text)
    if text not in COUNTED:
        raise UsageError(
            f"torchrun --nproc-per-node {text}: give a number of ranks, or gpu, cpu or auto."
        )
    try:
        done = subprocess.run(
            [shell.python, "-P", "-c", COUNT, text],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=ANSWER_S,
            check=True,
            env={**shell.variables, **known.env},
        )
        return int(done.stdout.split()[-1])
    except subprocess.TimeoutExpired as error:
        why = f"torch did not count them within {ANSWER_S:.0f} s"
        raise UsageError(f"torchrun --nproc-per-node {text}: {why}. Give a number.") from error
    except subprocess.CalledProcessError as error:
        why = (error.stderr.strip().splitlines() or ["torch did not count them"])[-1]
        raise UsageError(f"torchrun --nproc-per-node {text}: {why} Give a number.") from error
