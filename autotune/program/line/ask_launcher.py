"""Ask torchrun or accelerate what it would do with a command line, by its own parser.

``launchers.py`` runs this file as ``python -m autotune.program.line.ask_launcher LAUNCHER OPTIONS
SCRIPT …`` and reads the Answer, which is printed as one line of JSON. It runs in a separate process
because both import torch.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import sys
from collections.abc import Sequence
from contextlib import redirect_stderr
from dataclasses import asdict, dataclass, field
from typing import Any

# Options of torchrun, by their names in its parser: what is done here as well, or is decided by
# autotune's own launcher, such as where ranks meet; and what that cannot do
DONE = {
    *("nnodes", "nproc_per_node", "module", "no_python", "training_script", "training_script_args"),
    *("rdzv_backend", "rdzv_endpoint", "rdzv_id", "rdzv_conf", "standalone", "node_rank"),
    *("master_addr", "master_port", "local_addr"),
}
UNABLE = {"run_path", "numa_binding", "virtual_local_rank"}
ELSEWHERE = {
    "use_deepspeed": "DeepSpeed's engine owns the model and the optimizer, so autotune cannot "
    "change them. Search the program without it: accelerate launch --multi_gpu …",
    "use_megatron_lm": "Megatron-LM shards the model in ways that autotune does not know. Search "
    "the program without it: accelerate launch --multi_gpu …",
    "tpu": "autotune does not tune TPUs. Search on a machine with GPUs or CPUs.",
}


@dataclass(frozen=True)
class Answer:
    """What a launcher would do.

    Attributes:
        words: The words that each process runs, without the interpreter.
        ranks: Number of processes that train together; None for one process.
        is_python: Whether an interpreter runs the words.
    """

    refused: str = ""
    words: tuple[str, ...] = ()
    ranks: int | None = None
    env: dict[str, str] = field(default_factory=dict)
    is_python: bool = True
    notes: tuple[str, ...] = ()


def answer(launcher: str, words: Sequence[str]) -> Answer:
    """Return what ``torchrun`` or ``accelerate launch`` would do with the words after its name."""
    said = io.StringIO()
    try:
        with redirect_stderr(said):
            return (torchrun if launcher == "torchrun" else accelerate)(words)
    except SystemExit as end:  # how argparse ends
        fault = said.getvalue().strip().rpartition("error: ")[2]
        return Answer(fault if end.code else "its help trains nothing. Leave --help out.")
    except ImportError:
        return Answer(
            f"{launcher} is not installed in this environment. Install it "
            f"({sys.executable} -m pip install {launcher}), or name the program without it."
        )


def torchrun(words: Sequence[str]) -> Answer:
    """Return what torchrun would do."""
    run: Any = importlib.import_module("torch.distributed.run")
    parser = run.get_args_parser()
    args, usual = parser.parse_args(words), parser.parse_args(["train.py"])
    if any(part != "1" for part in str(args.nnodes).split(":")):  # it also takes a range, MIN:MAX
        return Answer(_several(args.nnodes, "--nnodes 1"))
    changed = {name for name, value in vars(args).items() if value != getattr(usual, name)}
    if unable := sorted(changed & UNABLE):
        return Answer(f"autotune does not start ranks with {_typed(unable)}. Leave it out.")
    try:
        ranks = run.determine_local_world_size(args.nproc_per_node)
    except ValueError as error:
        return Answer(f"{error}. Give a number of ranks, or gpu, cpu or auto.")
    lost = sorted(changed - DONE)
    needs_threads = ranks > 1 and "OMP_NUM_THREADS" not in os.environ  # torchrun sets it then
    return Answer(
        words=(*(["-m"] if args.module else []), args.training_script, *args.training_script_args),
        ranks=ranks,
        env={"OMP_NUM_THREADS": "1"} if needs_threads else {},
        is_python=not args.no_python,
        notes=(f"{_typed(lost)} of torchrun is left out.",) if lost else (),
    )


def accelerate(words: Sequence[str]) -> Answer:
    """Return what ``accelerate launch`` would do: its parser and the user's config file decide."""
    launch: Any = importlib.import_module("accelerate.commands.launch")
    environments: Any = importlib.import_module("accelerate.utils.launch")
    parser = launch.launch_command_parser()
    # The private function is what merges the flags with the user's config file; there is no public
    # one.
    args, defaults, _ = launch._validate_launch_command(parser.parse_args(words))  # noqa: SLF001
    if fault := _fault(args, defaults):
        return Answer(fault)
    has_ranks = not args.cpu and (args.multi_gpu or args.use_fsdp)
    if has_ranks:
        variables = environments.prepare_multi_gpu_env(args)
    else:
        _, variables = environments.prepare_simple_launcher_cmd_env(args)
    return Answer(
        words=(*(["-m"] if args.module else []), args.training_script, *args.training_script_args),
        ranks=int(args.num_processes) if has_ranks else None,
        env={n: str(v) for n, v in variables.items() if os.environ.get(n) != str(v)},
        is_python=not args.no_python,
    )


def _fault(args: Any, defaults: Any) -> str:
    """Return why autotune cannot start what accelerate would, empty if it can."""
    if (args.num_machines or 1) > 1:
        return _several(args.num_machines, "--num_machines 1")
    if "SAGEMAKER" in str(getattr(defaults, "compute_environment", "")):
        return "its config starts SageMaker. Search on the machine that trains."
    if getattr(args, "mpirun_hostfile", None) is not None:
        return "it starts the ranks by mpirun. Search with torchrun --nproc-per-node N."
    wrong = (why for name, why in ELSEWHERE.items() if getattr(args, name, False) and not args.cpu)
    return next(wrong, "")


def _several(machines: object, one: str) -> str:
    return (
        f"{machines} machines train together, and a search runs on one. Search with {one}; train "
        "on several by: autotune run --nnodes N best.yaml …"
    )


def _typed(names: Sequence[str]) -> str:
    return ", ".join(f"--{name.replace('_', '-')}" for name in names)


if __name__ == "__main__":
    sys.stdout.write(f"{json.dumps(asdict(answer(sys.argv[1], sys.argv[2:])))}\n")
