"""DeepSpeed: the JSON file for ``deepspeed.initialize(config=...)``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import ClassVar

from autotune.program.config import KnobValue
from autotune.program.devices import parts_of
from autotune.results.bestfile import BestFile
from autotune.results.exporters.base import Say, Settings, SettingsExporter, as_is, by_value


def _devices(value: KnobValue, _: BestFile) -> Settings | str:
    stages = {"single": 0, "ddp": 0, "zero1": 1, "fsdp": 3}
    stage = stages.get(parts_of(value)[0])
    return "it has no such strategy" if stage is None else {"zero_optimization": {"stage": stage}}


OFFLOAD = {"offload_param": {"device": "cpu"}, "offload_optimizer": {"device": "cpu"}}


class DeepSpeed(SettingsExporter):
    """Writes a whole config, which must tell the micro-batch."""

    name = "deepspeed"
    file_name = "deepspeed.json"
    tool = "DeepSpeed"
    said: ClassVar[Mapping[str, Say]] = {
        "batch_size": as_is("train_micro_batch_size_per_gpu"),
        "accumulation_steps": as_is("gradient_accumulation_steps"),
        "precision": by_value(
            {
                "bf16": {"bf16": {"enabled": True}, "fp16": {"enabled": False}},
                "fp16": {"fp16": {"enabled": True}, "bf16": {"enabled": False}},
                "fp32": {"bf16": {"enabled": False}, "fp16": {"enabled": False}},
            },
            "it has no such precision",
        ),
        "devices": _devices,
        "fsdp_options": by_value(
            {"cpu-offload": {"zero_optimization": OFFLOAD}}, "it has no such option"
        ),
    }

    def write(self, settings: Settings, best: BestFile) -> str:
        """Return the JSON."""
        batch = best.config.get("batch_size")
        own = {} if batch is None else {"train_micro_batch_size_per_gpu": batch}
        steps = {"gradient_accumulation_steps": best.config.get("accumulation_steps", 1)}
        return json.dumps({**own, **steps, **settings}, indent=2) + "\n"
