"""Lightning: arguments of its Trainer as YAML for LightningCLI, and of Fabric as Python."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import yaml

from autotune.program.config import KnobValue
from autotune.program.devices import parts_of, ranks_in
from autotune.results.bestfile import BestFile
from autotune.results.exporters.base import (
    Say,
    Settings,
    SettingsExporter,
    as_is,
    by_value,
    in_script,
)

PRECISION = by_value(
    {
        "bf16": {"precision": "bf16-mixed"},
        "fp16": {"precision": "16-mixed"},
        "fp32": {"precision": "32-true"},
    },
    "call torch.set_float32_matmul_precision('high') in the script",
)
IN_SCRIPT = "the script builds its DataLoader; pass it there"


def _devices(value: KnobValue, _: BestFile) -> Settings | str:
    strategy, count = parts_of(value)
    if strategy == "fsdp":
        return "its 'fsdp' is FSDP 1, and FSDP 2 was measured"
    known = {"single": "auto", "ddp": "ddp", "own": "auto"}
    if strategy not in known:
        return "it has no such strategy"
    return {"strategy": known[strategy], "devices": count}


def _accelerator(best: BestFile) -> dict[str, Any]:
    kind = "cpu" if best.program.device == "cpu" else "gpu"
    return {"accelerator": kind, "devices": ranks_in(best.config)}


class Lightning(SettingsExporter):
    """Writes the section ``trainer`` of a config file of LightningCLI."""

    name = "lightning"
    file_name = "trainer.yaml"
    tool = "Lightning's Trainer"
    said: ClassVar[Mapping[str, Say]] = {
        "precision": PRECISION,
        "accumulation_steps": as_is("accumulate_grad_batches"),
        "cudnn": lambda value, _: {"benchmark": value == "benchmark"},
        "sync_batchnorm": as_is("sync_batchnorm"),
        "devices": _devices,
        **in_script(IN_SCRIPT),
    }

    def write(self, settings: Settings, best: BestFile) -> str:
        """Return the YAML."""
        return yaml.safe_dump({"trainer": {**_accelerator(best), **settings}}, sort_keys=True)


class Fabric(SettingsExporter):
    """Writes the call that builds a Fabric."""

    name = "fabric"
    file_name = "fabric_setup.py"
    tool = "Fabric"
    said: ClassVar[Mapping[str, Say]] = {
        "precision": PRECISION,
        "devices": _devices,
        **in_script(IN_SCRIPT),
        "accumulation_steps": lambda *_: "the script accumulates by fabric.no_backward_sync()",
    }

    def write(self, settings: Settings, best: BestFile) -> str:
        """Return the Python code."""
        arguments = {**_accelerator(best), **settings}
        lines = "".join(f"    {name}={value!r},\n" for name, value in sorted(arguments.items()))
        return f"from lightning.fabric import Fabric\n\nfabric = Fabric(\n{lines})\n"
