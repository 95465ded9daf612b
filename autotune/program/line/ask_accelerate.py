"""Ask accelerate what ``accelerate launch`` would do with a command line.

``accelerate.py`` runs this file as ``python -m autotune.program.line.ask_accelerate OPTIONS SCRIPT
…`` and reads the Answer, which is printed as one line of JSON. It runs in a separate process
because accelerate imports torch.
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
    "use_deepspeed": "DeepSpeed's engine owns the model and the optimizer, so autotune cannot "
    "change them. Search the program without it: accelerate launch --multi_gpu …",
    "use_megatron_lm": "Megatron-LM shards the model in ways that autotune does not know. Search "
    "the program without it: accelerate launch --multi_gpu …",
    "tpu": "autotune does not tune TPUs. Search on a machine with GPUs or CPUs.",
}


@dataclass(frozen=True)
class Answer:
    """What ``accelerate launch`` would do.

    Attributes:
        refused: Why autotune cannot do the same; empty if it can.
        words: The words that each process runs, without the interpreter.
        ranks: Number of processes that train together; None for one process.
        env: Environment variables that accelerate would change.
        is_python: Whether an interpreter runs the words; False with ``--no_python``.
    """

    refused: str = ""
    words: tuple[str, ...] = ()
    ranks: int | None = None
    env: dict[str, str] = field(default_factory=dict)
    is_python: bool = True


def answer(words: Sequence[str]) -> Answer:
    """Return what accelerate would do with the words after ``accelerate launch``.

    accelerate's own parser and the user's accelerate config decide.
    """
    try:
        launch: Any = importlib.import_module("accelerate.commands.launch")
        environments: Any = importlib.import_module("accelerate.utils.launch")
    except ImportError:
        return Answer(
            "accelerate is not installed in this environment. Install it "
            f"({sys.executable} -m pip install accelerate), or name the program without it."
        )
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
    module = ["-m"] if args.module else []
    return Answer(
        words=(*module, args.training_script, *args.training_script_args),
        ranks=int(args.num_processes) if has_ranks else None,
        env={n: str(v) for n, v in variables.items() if os.environ.get(n) != str(v)},
        is_python=not args.no_python,
    )


def _fault(args: Any, defaults: Any) -> str:
    """Return why autotune cannot start what accelerate would, empty if it can."""
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
