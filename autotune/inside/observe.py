"""Describe the program as a ``Profile``, by its first steps and by what the seams saw.

The search decides from the profile which knobs apply to the program and what its baseline is.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping
from statistics import median
from typing import Any

import torch
from torch import distributed, nn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorms
from torch.nn.modules.conv import _ConvNd as Convolutions

from autotune.inside.first_steps import FirstSteps
from autotune.inside.listener import Root
from autotune.inside.malloc import allocator_facts
from autotune.inside.ranks.group import Group
from autotune.inside.readings import frames_compiled
from autotune.inside.seam_set import SeamSet
from autotune.inside.seams.checkpoint import blocks_of
from autotune.inside.seams.torch_settings import settings_of
from autotune.knobs.strategies.base import ACCELERATE, DDP, FABRIC, LIGHTNING, TRANSFORMERS
from autotune.program.config import KnobValue
from autotune.program.profile import (
    LoopFacts,
    ModelFacts,
    PrecisionFacts,
    Profile,
    RankFacts,
    told_by,
)

TRAINERS = {"lightning": LIGHTNING, "transformers": TRANSFORMERS}
WRAPPERS = {  # the outermost first: Fabric's wrapper contains that of DDP or FSDP
    "_FabricModule": FABRIC,
    "DistributedDataParallel": DDP,
    "FullyShardedDataParallel": "FullyShardedDataParallel",
}


def profile_of(
    device: str, first: FirstSteps, seams: SeamSet, config_reads: Mapping[str, KnobValue]
) -> Profile:
    """Return the profile; the first steps must be complete."""
    roots, flags = seams.model.forward.roots, seams.watched.flags.all()
    # a library's trainer alone knows how long it trains
    length = seams.trainers.length if seams.trainers.in_use else told_by(flags)
    distributes_itself = (  # what autotune distributes has a wrapper of autotune's
        "" if seams.model.distribution.is_needed else distributed_by(roots, seams.trainers.in_use)
    )
    return Profile(
        device=device,
        loaders=tuple(seams.loader.built.facts(loader) for loader in first.loaders or ()),
        optimizers=tuple(first.optimizers.values()),
        model=model_facts(roots),
        precision=PrecisionFacts(
            weights_dtype(roots),
            seams.model.autocast.own_dtype,
            seams.model.autocast.has_own_scaler,
        ),
        settings=settings_of(device, calls_sdpa=seams.watched.uses.calls_sdpa),
        allocators=allocator_facts(device),
        loop=LoopFacts(
            loads_on=first.loads_on,
            trainer=seams.trainers.in_use,
            batches_per_step=median(first.batches_per_step),
            reads_ahead=first.reads_ahead or first.loader_thread,
            copies_without_blocking=seams.model.transfer.own_non_blocking,
            zero_grad_to_none=seams.steps.accumulation.clears_to_none,
            against_scaling=_against_scaling(seams),
            steps_by_hand=str(seams.steps.by_hand.place) if first.lead is None else "",
            length=length,
        ),
        ranks=RankFacts(first.group.world_size, distributes_itself, first.group.started_by),
        holds_open=seams.loader.workers.held_open(first.loaders[0]) if first.loaders else "",
        flags=flags,
        config_reads=dict(config_reads),
    )


def _against_scaling(seams: SeamSet) -> str:
    if not seams.steps.scaling.passes:
        return "the program computes gradients without backward()"
    if name := seams.watched.uses.reads_gradients:
        return f"the program reads gradients within the backward pass ({name})"
    return seams.steps.scaling.against


def model_facts(roots: Mapping[nn.Module, Root]) -> ModelFacts:
    """Return what the outermost modules consist of, all of them together."""
    modules = [m for root in roots for m in root.modules()]
    models = [root for root in roots if isinstance(root, nn.Sequential)]
    # Only 4-D parameters can be in channels_last, which is the memory format of NCHW tensors.
    images = [p for root in roots for p in root.parameters() if p.dim() == 4]
    return ModelFacts(
        parameters=sum(r.parameters for r in roots.values()),
        repeated_blocks=len(blocks_of(roots)),
        stages=len(models[0]) if len(models) == len(roots) == 1 else 0,
        conv2d_layers=sum(isinstance(m, nn.Conv2d) for m in modules),
        convolutions=sum(isinstance(m, Convolutions) for m in modules),
        batch_norm_layers=sum(isinstance(m, BatchNorms) for m in modules),
        channels_last=any(
            w.is_contiguous(memory_format=torch.channels_last) and not w.is_contiguous()
            for w in images
        ),
        is_compiled=bool(frames_compiled()) or any(r._compiled_call_impl for r in roots),  # noqa: SLF001
        replicas=max((len(m.device_ids) or 1 for m in replicated_in(roots)), default=0),
    )


def replicated_in(roots: Iterable[nn.Module]) -> list[nn.DataParallel[Any]]:
    """Return the ``nn.DataParallel`` modules in some models."""
    return [m for root in roots for m in root.modules() if isinstance(m, nn.DataParallel)]


def weights_dtype(roots: Iterable[nn.Module]) -> str:
    """Return the dtype of the floating-point parameters; the smallest if they differ."""
    dtypes = {p.dtype for root in roots for p in root.parameters() if p.is_floating_point()}
    smallest = min(dtypes, key=lambda dtype: dtype.itemsize, default=torch.float32)
    return str(smallest).removeprefix("torch.")


def distributed_by(roots: Collection[nn.Module], trainer: str) -> str:
    """Return the API with which a program distributes its training; empty if it does not.

    A program that only prepares for several devices, for example through Accelerate, counts too: it
    would use them if it were launched with them.
    """
    if trainer:
        return TRAINERS[trainer]
    state = sys.modules.get("accelerate.state")
    if state is not None and state.AcceleratorState._shared_state:  # noqa: SLF001
        return ACCELERATE
    for module in replicated_in(roots):  # it divides batches itself, so one device cannot be chosen
        if len(module.device_ids) > 1 and type(module).forward is not nn.DataParallel.forward:
            return type(module).__name__
    names = {type(m).__name__ for root in roots for m in root.modules()}
    if found := [name for name in WRAPPERS if name in names]:
        return WRAPPERS[found[0]]
    is_open = distributed.is_available() and distributed.is_initialized()
    return "torch.distributed" if is_open else ""


def insist_on_one_group(group: Group, seams: SeamSet) -> None:
    """Raise an error if the ranks do not train in one process group.

    Ranks that do not know of each other would each train a separate model, and look faster for it.
    """
    if seams.model.distribution.has_ranks:
        return
    size = distributed.get_world_size() if distributed.is_initialized() else 1
    if size == group.world_size:
        return
    if group.world_size == 1:
        raise RuntimeError(
            f"the program trains in a group of {size} processes, of which autotune has seen one "
            "start. Let autotune start them: autotune search -- torchrun --nproc-per-node "
            f"{size} train.py"
        )
    trains = f"the program trains in groups of {size} where {group.world_size} ranks were started"
    if not group.started_by:
        raise RuntimeError(
            f"{trains}: it does not take its rank and world size from torchrun. Call "
            "init_process_group() with the rank and world size that torchrun sets"
        )
    raise RuntimeError(
        f"{trains} by {group.started_by}: its processes train separate models, or join processes "
        "on other machines. Search it with one such process, or let each process call "
        "init_process_group() with its rank and the total number of processes"
    )
