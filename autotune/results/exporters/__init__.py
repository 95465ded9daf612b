"""Exporters: best.yaml in the words of other tools; pure functions of the file."""

from __future__ import annotations

from autotune.errors import named
from autotune.results.exporters.accelerate import Accelerate
from autotune.results.exporters.base import Export, Exporter
from autotune.results.exporters.deepspeed import DeepSpeed
from autotune.results.exporters.env_file import EnvFile
from autotune.results.exporters.hf import HuggingFace
from autotune.results.exporters.lightning import Fabric, Lightning
from autotune.results.exporters.patch import Patch
from autotune.results.exporters.sbatch import Sbatch
from autotune.results.exporters.snippet import Snippet
from autotune.results.exporters.torchrun import Torchrun

__all__ = ["EXPORTERS", "Export", "Exporter", "exporter"]

EXPORTERS: dict[str, Exporter] = {
    one.name: one
    for one in (
        Snippet(),
        Patch(),
        HuggingFace(),
        Accelerate(),
        Lightning(),
        Fabric(),
        Torchrun(),
        DeepSpeed(),
        Sbatch(),
        EnvFile(),
    )
}


def exporter(name: str) -> Exporter:
    """Return the exporter of a format.

    Raises:
        UsageError: There is no such format; the message lists those that there are.
    """
    return named("format", name, EXPORTERS)
