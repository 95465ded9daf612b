"""Observe the program's first steps and describe the program as a ``Profile``.

The search decides from the profile which knobs apply to the program and what its baseline is.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace

import torch
from torch import distributed, nn
from torch.optim import Optimizer

from autotune.inside.code.bounds import bound_by_flag, bound_of
from autotune.inside.code.frames import callers
from autotune.inside.code.loops import Calls, Known, calls_of
from autotune.inside.code.run_length import epochs_by_flag, length_of, steps_by_flag
from autotune.inside.data.feed import Feed
from autotune.inside.examining.model_facts import model_facts, weights_dtype
from autotune.inside.first_steps import FirstSteps
from autotune.inside.malloc import allocator_facts
from autotune.inside.ranks.distributed_by import distributed_by
from autotune.inside.ranks.group import ALONE, Group
from autotune.inside.seam_set import SeamSet
from autotune.inside.seams.optimizer import optimizer_facts
from autotune.inside.seams.torch_settings import settings_of
from autotune.program.config import KnobValue
from autotune.program.profile import LoopFacts, OptimizerFacts, PrecisionFacts, Profile, RankFacts
from autotune.program.run_length import RunLength


class Observer(FirstSteps):
    """Collects a ``Profile`` from the program's first steps and from what the seams saw.

    ``StepTracker`` owns it and calls it in the program's main thread; batches are noted in the
    thread that asks for them. ``LeadRank`` asks for the profile once, when the first steps are
    complete.

    Args:
        seams: The seams of this process.
        group: The processes that train together.
    """

    def __init__(self, seams: SeamSet, group: Group = ALONE) -> None:
        super().__init__(group)
        self._seams = seams
        self._optimizers: dict[int, OptimizerFacts] = {}
        self._device = ""
        self._asked: dict[int, Calls] = {}
        self._bound: str | None = None
        self._length: RunLength | None = None

    def batch_handed_out(self, feed: Feed) -> None:
        """Note a batch, and the place in the program that asked for it.

        The places are needed to find the loop that the batches come to, until the loaders that
        train are known.
        """
        super().batch_handed_out(feed)
        if self.loaders is None and torch.is_grad_enabled():
            self._asked[id(feed.loader)] = calls_of(callers())

    def _step_made(self) -> None:
        was_known = self.loaders is not None
        super()._step_made()
        if self.loaders is not None and not was_known:
            asked = [call for own in self.loaders for call in self._asked.get(id(own), ())]
            known = Known(self._seams.flags.all(), self._steps_per_epoch)
            self._bound = bound_of(callers(), asked, known)
            self._length = length_of(callers(), asked, known, self.batches_per_step)

    @property
    def _steps_per_epoch(self) -> int | None:
        batches = self._seams.loader.sizes.length(self.loaders[0]) if self.loaders else None
        return batches and max(1, batches // self.batches_per_step)

    @property
    def _bounded_by_steps(self) -> str:
        """The code that fixes the number of steps, such as a ``range`` or a flag; empty if none.

        If a library's trainer runs the loop, only the trainer knows: the loop is not the program's.
        """
        if self._seams.trainers.in_use:
            return self._seams.trainers.bound
        if self._bound is not None:
            return self._bound
        return bound_by_flag(self._seams.flags.all())

    @property
    def _run_length(self) -> RunLength:
        if self._seams.trainers.in_use:
            return self._seams.trainers.length
        flags, length = self._seams.flags.all(), self._length
        if length is None:  # the code cannot be read
            by_steps = steps_by_flag(flags)
            return by_steps if by_steps.steps else epochs_by_flag(flags)
        if length.where or length.unknown or (self._bound and length.batches is None):
            return length
        told = epochs_by_flag(flags)
        return replace(told, batches=length.batches)

    def optimizer_stepped(self, optimizer: Optimizer) -> bool:
        """Note a step and, at an optimizer's first one, its facts; return whether the step counts.

        Only the steps of one optimizer count, see ``FirstSteps``.
        """
        if self.is_complete and self._device:  # the profile is known
            return super().optimizer_stepped(optimizer)
        if id(optimizer) not in self._optimizers:
            self._optimizers[id(optimizer)] = optimizer_facts(optimizer)
        counts = super().optimizer_stepped(optimizer)
        if counts and not self._device:
            self._device = optimizer.param_groups[0]["params"][0].device.type
        return counts

    def device(self) -> str:
        """Return the type of the device that holds the trained parameters, such as ``cuda``."""
        return self._device or self._seams.by_hand.device

    def profile(self, config_reads: Mapping[str, KnobValue]) -> Profile:
        """Return the profile; the first steps must be complete.

        Args:
            config_reads: The knobs that the program read from its config, with the values it got.
        """
        seams, roots, device = self._seams, self._seams.forward.roots, self.device()
        return Profile(
            device=device,
            loaders=tuple(seams.loader.facts(own) for own in self.loaders or ()),
            optimizers=tuple(self._optimizers.values()),
            model=model_facts(roots),
            precision=PrecisionFacts(
                weights_dtype(roots), seams.autocast.own_dtype, seams.autocast.has_own_scaler
            ),
            settings=settings_of(device, calls_sdpa=seams.uses.calls_sdpa),
            allocators=allocator_facts(device),
            loop=LoopFacts(
                trainer=seams.trainers.in_use,
                batches_per_step=self.batches_per_whole_step,
                reads_ahead=self.reads_ahead or self.loader_thread,
                copies_without_blocking=seams.transfer.own_non_blocking,
                zero_grad_to_none=seams.clearing.own_to_none,
                against_scaling=self._against_scaling,
                steps_by_hand=str(seams.by_hand.place) if self.lead is None else "",
            ),
            ranks=RankFacts(
                self.group.world_size, self._distributed_by(roots), self.group.started_by
            ),
            holds_open=seams.loader.held_open(self.loaders[0]) if self.loaders else "",
            bounded_by_steps=self._bounded_by_steps,
            length=self._run_length,
            flags=seams.flags.all(),
            config_reads=dict(config_reads),
        )

    @property
    def _against_scaling(self) -> str:
        if not self._seams.scaling.passes:
            return "the program computes gradients without backward()"
        if name := self._seams.uses.reads_gradients:
            return f"the program reads gradients within the backward pass ({name})"
        return self._seams.scaling.against

    def _distributed_by(self, roots: Collection[nn.Module]) -> str:
        if self._seams.distribution.is_needed:
            return ""  # autotune distributes the program, so any wrapper found is autotune's
        return distributed_by(roots, self._seams.trainers.in_use)

    def insist_on_one_group(self) -> None:
        """Raise an error if the ranks do not train in one process group.

        Ranks that do not know of each other would each train a separate model, and look faster for
        it.
        """
        if self._seams.distribution.has_ranks:
            return
        size = distributed.get_world_size() if distributed.is_initialized() else 1
        if size != self.group.world_size:
            raise RuntimeError(_no_group(size, self.group))


def _no_group(size: int, group: Group) -> str:
    """Return the error message for processes that do not train together, with the remedy.

    Args:
        size: Number of processes in the program's process group; 1 without one.
        group: The processes that were expected to train together.
    """
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
