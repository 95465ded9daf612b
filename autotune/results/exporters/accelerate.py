"""Accelerate: the YAML file for ``accelerate launch --config_file``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import yaml

from autotune.program.config import KnobValue
from autotune.results.bestfile import BestFile
from autotune.results.exporters.base import Say, Settings, SettingsExporter, as_is, by_value

IN_SCRIPT = "the script builds its DataLoader; Accelerate keeps its options"


def _strategy(value: KnobValue, best: BestFile) -> Settings | str:
    device = "MULTI_CPU" if best.program.device == "cpu" else "MULTI_GPU"
    match value:
        case "single":
            return {"distributed_type": "NO"}
        case "ddp":
            return {"distributed_type": device}
        case "fsdp":
            return {"distributed_type": "FSDP", "fsdp_config": {"fsdp_version": 2}}
        case _:
            return "it has no such strategy"


def _fsdp(name: str) -> Say:
    return lambda value, _: {"fsdp_config": {name: value}}


def _compile(value: KnobValue, _: BestFile) -> Settings:
    if value == "off":
        return {"dynamo_config": {"dynamo_backend": "NO"}}
    return {"dynamo_config": {"dynamo_backend": "INDUCTOR", "dynamo_mode": value}}


class Accelerate(SettingsExporter):
    """Writes a whole config file, since ``accelerate launch`` takes no part of one."""

    name = "accelerate"
    file_name = "accelerate.yaml"
    tool = "Accelerate"
    said: ClassVar[Mapping[str, Say]] = {
        "precision": by_value(
            {
                "bf16": {"mixed_precision": "bf16"},
                "fp16": {"mixed_precision": "fp16"},
                "fp32": {"mixed_precision": "no"},
            },
            "it has no such precision",
        ),
        "world_size": as_is("num_processes"),
        "num_threads": lambda value, _: (
            f"it is a flag: accelerate launch --num_cpu_threads_per_process {value}"
        ),
        "strategy": _strategy,
        "fsdp_reshard_after_forward": _fsdp("fsdp_reshard_after_forward"),
        "fsdp_cpu_offload": _fsdp("fsdp_offload_params"),
        "compile": _compile,
        "activation_checkpointing": by_value(
            {"off": {}}, "it recomputes blocks under FSDP only, by its own rule"
        ),
        **dict.fromkeys(
            ("num_workers", "batch_size", "pin_memory", "persistent_workers", "prefetch_factor"),
            lambda *_: IN_SCRIPT,
        ),
        "accumulation_steps": lambda *_: "the script passes it to Accelerator()",
    }

    def write(self, settings: Settings, best: BestFile) -> str:
        """Return the YAML."""
        on_cpu = best.program.device == "cpu"
        whole = {
            "compute_environment": "LOCAL_MACHINE",
            "distributed_type": "NO",
            "enable_cpu_affinity": not on_cpu,
            "machine_rank": 0,
            "main_training_function": "main",
            "mixed_precision": "no",
            "num_machines": 1,
            "num_processes": 1,
            "rdzv_backend": "static",
            "same_network": True,
            "use_cpu": on_cpu,
        }
        return yaml.safe_dump({**whole, **settings}, sort_keys=True)
