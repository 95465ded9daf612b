"""Hugging Face: arguments of ``TrainingArguments`` as JSON, for ``HfArgumentParser``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import ClassVar

from autotune.program.config import KnobValue
from autotune.results.bestfile import BestFile
from autotune.results.exporters.base import Say, Settings, SettingsExporter, as_is, by_value

TORCHRUN = (
    "start the script with torchrun instead ('autotune export --to torchrun' writes the line)"
)


def _compile(value: KnobValue, _: BestFile) -> Settings | str:
    if value == "off":
        return {"torch_compile": False}
    if str(value).endswith("-dynamic"):
        return "it has no argument for dynamic shapes"
    mode = {} if value == "default" else {"torch_compile_mode": value}
    return {"torch_compile": True, **mode}


def _optimizer(value: KnobValue, best: BestFile) -> Settings | str:
    families = {family for facts in best.program.optimizers for family in facts.families}
    if "AdamW" not in families:
        return "it chooses an implementation of AdamW only"
    if value == "fused":
        return {"optim": "adamw_torch_fused"}
    return {"optim": "adamw_torch"}


class HuggingFace(SettingsExporter):
    """Writes the changes as JSON that ``HfArgumentParser.parse_json_file`` reads."""

    name = "hf"
    file_name = "training_arguments.json"
    tool = "TrainingArguments"
    said: ClassVar[Mapping[str, Say]] = {
        "batch_size": as_is("per_device_train_batch_size"),
        "accumulation_steps": as_is("gradient_accumulation_steps"),
        "precision": by_value(
            {
                "bf16": {"bf16": True, "fp16": False},
                "fp16": {"fp16": True, "bf16": False},
                "tf32": {"tf32": True, "bf16": False, "fp16": False},
                "fp32": {"bf16": False, "fp16": False},
            },
            "it has no such precision",
        ),
        "workers": lambda value, _: {
            "dataloader_num_workers": value,
            "dataloader_persistent_workers": bool(value),
        },
        "prefetch_factor": as_is("dataloader_prefetch_factor"),
        "pinning": lambda value, _: {"dataloader_pin_memory": value != "off"},
        "compile": _compile,
        "activation_checkpointing": by_value(
            {"off": {"gradient_checkpointing": False}, "all": {"gradient_checkpointing": True}},
            "it recomputes all blocks or none",
        ),
        "optimizer": _optimizer,
        "ddp_options": by_value(
            {
                "static-graph": {"ddp_static_graph": True},
                "small-buckets": {"ddp_bucket_cap_mb": 5},
                "large-buckets": {"ddp_bucket_cap_mb": 100},
            },
            "it has no argument for it",
        ),
        "devices": lambda *_: TORCHRUN,
    }

    def write(self, settings: Settings, best: BestFile) -> str:  # noqa: ARG002
        """Return the JSON."""
        return json.dumps(settings, indent=2) + "\n"
