"""Accelerate: the YAML file for ``accelerate launch --config_file``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import yaml

from autotune.program.config import KnobValue
from autotune.program.devices import parts_of
from autotune.results.bestfile import BestFile
from autotune.results.exporters.base import Say, Settings, SettingsExporter, by_value, in_script

IN_SCRIPT = "the script builds its DataLoader; Accelerate keeps its options"


def _devices(value: KnobValue, best: BestFile) -> Settings | str:
    device = "MULTI_CPU" if best.program.device == "cpu" else "MULTI_GPU"
    strategy, count = parts_of(value)
    match strategy:
        case "single":
            return {"distributed_type": "NO", "num_processes": 1}
        case "ddp" | "own":
            return {"distributed_type": device, "num_processes": count}
        case "fsdp":
            fsdp = {"distributed_type": "FSDP", "fsdp_config": {"fsdp_version": 2}}
            return {**fsdp, "num_processes": count}
        case _:
            return "it has no such strategy"


def _compile(value: KnobValue, _: BestFile) -> Settings:
    if value == "off":
        return {"dynamo_config": {"dynamo_backend": "NO"}}
    mode, is_dynamic = str(value).removesuffix("-dynamic"), str(value).endswith("-dynamic")
    dynamic = {"dynamo_use_dynamic": True} if is_dynamic else {}
    return {"dynamo_config": {"dynamo_backend": "INDUCTOR", "dynamo_mode": mode, **dynamic}}


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
        "threads": lambda value, _: (
            f"it is a flag: accelerate launch --num_cpu_threads_per_process {value}"
        ),
        "devices": _devices,
        "fsdp_options": by_value(
            {
                "keep-gathered": {"fsdp_config": {"fsdp_reshard_after_forward": False}},
                "cpu-offload": {"fsdp_config": {"fsdp_offload_params": True}},
            },
            "it has no such option",
        ),
        "compile": _compile,
        "activation_checkpointing": by_value(
            {"off": {}}, "it recomputes blocks under FSDP only, by its own rule"
        ),
        **in_script(IN_SCRIPT),
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
