"""``python -m autotune.program.line.ask_accelerate OPTIONS SCRIPT …``: asks accelerate itself.

Prints an Answer as one line of JSON. Runs apart from the parent, since accelerate imports torch.
"""

from __future__ import annotations

import importlib
import json
import os
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

ELSEWHERE = {
    "use_deepspeed": "DeepSpeed's engine owns model and optimizer, which autotune cannot reach "
    "then. Search the program without it: accelerate launch --multi_gpu …",
    "use_megatron_lm": "Megatron-LM shards the model in ways that autotune does not know. Search "
    "the program without it: accelerate launch --multi_gpu …",
    "tpu": "autotune tunes no TPUs. Search on a machine with GPUs or CPUs.",
}


@dataclass(frozen=True)
class Answer:
    """What ``accelerate launch`` would do.

    Attributes:
        refused: Why autotune cannot do that; empty where it can.
        words: What each process runs, without the interpreter.
        ranks: How many processes train together, None for one alone.
        env: Variables that it sets.
        is_python: The interpreter runs the words; not so with ``--no_python``.
    """

    refused: str = ""
    words: tuple[str, ...] = ()
    ranks: int | None = None
    env: dict[str, str] = field(default_factory=dict)
    is_python: bool = True


def answer(words: Sequence[str]) -> Answer:
    """Return what the launcher would do with its words."""
    try:
        launch: Any = importlib.import_module("accelerate.commands.launch")
        environments: Any = importlib.import_module("accelerate.utils.launch")
    except ImportError:
        return Answer(
            "accelerate is not installed in this environment. Install it, or name the program "
            f"without it: {sys.executable} -m pip install accelerate"
        )
    parser = launch.launch_command_parser()
    args, defaults, _ = launch._validate_launch_command(parser.parse_args(words))  # noqa: SLF001
    if fault := _fault(args, defaults):
        return Answer(fault)
    has_ranks = not args.cpu and (args.multi_gpu or args.use_fsdp)
    if has_ranks:
        variables = environments.prepare_multi_gpu_env(args)
    else:
        _, variables = environments.prepare_simple_launcher_cmd_env(args)
    module = ["-m"] if args.module else []
    return Answer(
        words=(*module, args.training_script, *args.training_script_args),
        ranks=int(args.num_processes) if has_ranks else None,
        env={n: str(v) for n, v in variables.items() if os.environ.get(n) != str(v)},
        is_python=not args.no_python,
    )


def _fault(args: Any, defaults: Any) -> str:
    """Return why autotune cannot start what accelerate would, empty where it can."""
    if (args.num_machines or 1) > 1:
        return (
            f"{args.num_machines} machines train together, and a search runs on one. Search with "
            "--num_machines 1; train on several by: autotune run --nnodes N best.yaml …"
        )
    where = str(getattr(defaults, "compute_environment", ""))
    if "SAGEMAKER" in where:
        return "its config starts SageMaker. Search on the machine that trains."
    if getattr(args, "mpirun_hostfile", None) is not None:
        return "it starts the ranks by mpirun. Search with torchrun --nproc-per-node N."
    wrong = (why for name, why in ELSEWHERE.items() if getattr(args, name, False) and not args.cpu)
    return next(wrong, "")


if __name__ == "__main__":
    sys.stdout.write(f"{json.dumps(asdict(answer(sys.argv[1:])))}\n")
