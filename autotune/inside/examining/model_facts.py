"""What the models of a program are: its outermost modules that own parameters."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorms

from autotune.inside.listener import Root
from autotune.inside.readings import frames_compiled
from autotune.inside.seams.checkpoint import blocks_of
from autotune.program.profile import ModelFacts


def model_facts(roots: Mapping[nn.Module, Root]) -> ModelFacts:
    """Return what the outermost modules consist of, all of them together."""
    modules = [m for root in roots for m in root.modules()]
    # Only 4-D parameters can be in channels_last, which is the memory format of NCHW tensors.
    images = [p for root in roots for p in root.parameters() if p.dim() == 4]
    return ModelFacts(
        parameters=sum(r.parameters for r in roots.values()),
        repeated_blocks=len(blocks_of(roots)),
        stages=_stages(roots),
        conv2d_layers=sum(isinstance(m, nn.Conv2d) for m in modules),
        batch_norm_layers=sum(isinstance(m, BatchNorms) for m in modules),
        channels_last=any(_lies_channels_last(w) for w in images),
        is_compiled=bool(frames_compiled()) or any(r._compiled_call_impl for r in roots),  # noqa: SLF001
    )


def weights_dtype(roots: Iterable[nn.Module]) -> str:
    """Return the dtype of the floating-point parameters; the smallest if they differ."""
    dtypes = {p.dtype for root in roots for p in root.parameters() if p.is_floating_point()}
    smallest = min(dtypes, key=lambda dtype: dtype.itemsize, default=torch.float32)
    return str(smallest).removeprefix("torch.")


def _stages(roots: Collection[nn.Module]) -> int:
    """Return the number of children if the only root module is an ``nn.Sequential``; else 0."""
    models = [root for root in roots if isinstance(root, nn.Sequential)]
    return len(models[0]) if len(models) == len(roots) == 1 else 0


def _lies_channels_last(weight: torch.Tensor) -> bool:
    return weight.is_contiguous(memory_format=torch.channels_last) and not weight.is_contiguous()
