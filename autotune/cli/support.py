"""The commands ``env``, for bug reports, and ``skill``, for coding agents."""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

from autotune import __version__
from autotune.cli.exits import errors_told
from autotune.cli.messages import Messages
from autotune.cli.options import JsonOption

if TYPE_CHECKING:
    from collections.abc import Mapping

PACKAGES = (
    "torch", "torchvision", "numpy", "optuna", "psutil", "nvidia-ml-py", "pydantic", "rich",
    "typer", "lightning", "transformers", "accelerate",
)  # fmt: skip
# Variables that decide how fast torch is; their values hold no secrets
RELEVANT = re.compile(r"(OMP|MKL|KMP|CUDA|PYTORCH|TORCH|NCCL|GLOO|OPENBLAS|SLURM_(JOB|NNODES))_?")


def env(as_json: JsonOption = False) -> None:
    """Print versions, machine and settings for a bug report; it names none of your folders."""
    from autotune.machine import hardware

    with errors_told(Messages()):
        machine = hardware.detect()
        fence = _fence()
    facts: dict[str, object] = {
        "autotune": __version__,
        "python": platform.python_version(),
        "system": machine.system,
        "cpu": f"{machine.cpu_name}, {machine.cpu_quota} cores",
        "memory": f"{machine.memory_bytes / 2**30:.1f} GiB",
        "gpus": [gpu.name for gpu in machine.gpus],
        "packages": dict(_installed()),
        "variables": _variables(os.environ),
        "fence": fence,
    }
    if as_json:
        sys.stdout.write(f"{json.dumps(facts, indent=1)}\n")
        return
    for name, value in facts.items():
        listed = value.items() if isinstance(value, dict) else ()
        said = ", ".join(f"{k} {v}" for k, v in listed) if isinstance(value, dict) else value
        sys.stdout.write(f"{name}: {said or 'none'}\n")


def skill() -> None:
    """Print instructions for coding agents: procedure, JSON keys, exit codes, what never to do."""
    text = files("autotune.cli").joinpath("SKILL.md").read_text(encoding="utf-8")
    sys.stdout.write(text)


def _fence() -> str:
    """Return the kind of fence that works here; its sentence would name the user's folders."""
    from autotune.errors import FenceError
    from autotune.program.fence_options import STRONGEST
    from autotune.rig.fence import raise_fence

    try:
        with raise_fence(STRONGEST, Path.cwd()) as raised:
            return str(raised.kind)
    except FenceError:
        return "none works"


def _installed() -> Mapping[str, str]:
    found = {}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            continue
    return found


def _variables(environment: Mapping[str, str]) -> dict[str, str]:
    home = environment.get("HOME") or os.devnull
    return {
        name: value.replace(home, "~")
        for name, value in sorted(environment.items())
        if RELEVANT.match(name)
    }
