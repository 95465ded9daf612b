"""Describe the program as a ``Profile``, by its first steps and by what the seams saw.

The search decides from the profile which knobs apply to the program and what its baseline is.
"""

from __future__ import annotations

from collections.abc import Mapping

from torch import distributed

from autotune.inside.examining.model_facts import model_facts, weights_dtype
from autotune.inside.first_steps import FirstSteps
from autotune.inside.malloc import allocator_facts
from autotune.inside.ranks.distributed_by import distributed_by
from autotune.inside.ranks.group import Group
from autotune.inside.seam_set import SeamSet
from autotune.inside.seams.torch_settings import settings_of
from autotune.program.config import KnobValue
from autotune.program.profile import LoopFacts, PrecisionFacts, Profile, RankFacts, told_by


def device_of(first: FirstSteps, seams: SeamSet) -> str:
    """Return the type of the device that holds the trained parameters, such as ``cuda``."""
    if first.lead is None:
        return seams.by_hand.device
    return str(first.lead.param_groups[0]["params"][0].device.type)


def profile_of(first: FirstSteps, seams: SeamSet, config_reads: Mapping[str, KnobValue]) -> Profile:
    """Return the profile; the first steps must be complete.

    Args:
        first: What they showed.
        seams: The seams of this process.
        config_reads: The knobs that the program read from its config, with the values it got.
    """
    roots, device, flags = seams.forward.roots, device_of(first, seams), seams.flags.all()
    # a library's trainer alone knows how long it trains
    length = seams.trainers.length if seams.trainers.in_use else told_by(flags)
    distributes_itself = (  # what autotune distributes has a wrapper of autotune's
        "" if seams.distribution.is_needed else distributed_by(roots, seams.trainers.in_use)
    )
    return Profile(
        device=device,
        loaders=tuple(seams.loader.built.facts(loader) for loader in first.loaders or ()),
        optimizers=tuple(first.optimizers.values()),
        model=model_facts(roots),
        precision=PrecisionFacts(
            weights_dtype(roots), seams.autocast.own_dtype, seams.autocast.has_own_scaler
        ),
        settings=settings_of(device, calls_sdpa=seams.uses.calls_sdpa),
        allocators=allocator_facts(device),
        loop=LoopFacts(
            trainer=seams.trainers.in_use,
            batches_per_step=first.batches_per_whole_step,
            reads_ahead=first.reads_ahead or first.loader_thread,
            copies_without_blocking=seams.transfer.own_non_blocking,
            zero_grad_to_none=seams.clearing.own_to_none,
            against_scaling=_against_scaling(seams),
            steps_by_hand=str(seams.by_hand.place) if first.lead is None else "",
            length=length,
        ),
        ranks=RankFacts(first.group.world_size, distributes_itself, first.group.started_by),
        holds_open=seams.loader.workers.held_open(first.loaders[0]) if first.loaders else "",
        flags=flags,
        config_reads=dict(config_reads),
    )


def _against_scaling(seams: SeamSet) -> str:
    if not seams.scaling.passes:
        return "the program computes gradients without backward()"
    if name := seams.uses.reads_gradients:
        return f"the program reads gradients within the backward pass ({name})"
    return seams.scaling.against


def insist_on_one_group(group: Group, seams: SeamSet) -> None:
    """Raise an error if the ranks do not train in one process group.

    Ranks that do not know of each other would each train a separate model, and look faster for it.
    """
    if seams.distribution.has_ranks:
        return
    size = distributed.get_world_size() if distributed.is_initialized() else 1
    if size != group.world_size:
        raise RuntimeError(_no_group(size, group))


def _no_group(size: int, group: Group) -> str:
    if group.world_size == 1:
        return (
            f"the program trains in a group of {size} processes, of which autotune has seen one "
            "start. Let autotune start them: autotune search -- torchrun --nproc-per-node "
            f"{size} train.py"
        )
    trains = f"the program trains in groups of {size} where {group.world_size} ranks were started"
    if not group.started_by:
        return (
            f"{trains}: it does not take its rank and world size from torchrun. Call "
            "init_process_group() with the rank and world size that torchrun sets"
        )
    return (
        f"{trains} by {group.started_by}: its processes train separate models, or join processes "
        "on other machines. Search it with one such process, or let each process call "
        "init_process_group() with its rank and the total number of processes"
    )
