"""Observe the program's first steps and describe the program as a ``Profile``.

The search decides from the profile which knobs apply to the program and what its baseline is.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace

import torch
from torch import distributed, nn
from torch.backends import cudnn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorms
from torch.optim import Optimizer

from autotune.inside import malloc
from autotune.inside.code.bounds import bound_by_flag, bound_of
from autotune.inside.code.frames import callers
from autotune.inside.code.loops import Calls, Known, calls_of
from autotune.inside.code.run_length import epochs_by_flag, length_of, steps_by_flag
from autotune.inside.compiled import frames_compiled
from autotune.inside.data.feed import Feed
from autotune.inside.first_steps import FirstSteps
from autotune.inside.ranks.group import ALONE, Group
from autotune.inside.seams import SeamSet
from autotune.inside.seams.checkpoint import blocks_of
from autotune.inside.seams.optimizer import implementation_of, implementations_of
from autotune.inside.seams.rates import initial_rates_of, rates_of
from autotune.inside.seams.torch_settings import matmul_precision, profiles, sdpa_backend
from autotune.knobs.strategies.base import ACCELERATE, DDP, FABRIC, LIGHTNING, TRANSFORMERS
from autotune.program.config import KnobValue
from autotune.program.profile import OptimizerFacts, Profile
from autotune.program.run_length import RunLength

TRAINERS = {"lightning": LIGHTNING, "transformers": TRANSFORMERS}
WRAPPERS = {  # the outermost first: Fabric's wrapper contains that of DDP or FSDP
    "_FabricModule": FABRIC,
    "DistributedDataParallel": DDP,
    "FullyShardedDataParallel": "FullyShardedDataParallel",
    "DataParallel": "nn.DataParallel",
}


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
        super().__init__(group.world_size)
        self._seams = seams
        self._started_by = group.started_by
        self._optimizers: dict[int, OptimizerFacts] = {}
        self._device = ""
        self._asked: dict[int, Calls] = {}
        self._bound: str | None = None
        self._length: RunLength | None = None

    def take_ranks(self, group: Group) -> None:
        """Observe this process as one of several ranks that the program itself starts.

        Called before the program trains, when the first of these ranks is started.
        """
        self._world_size, self._started_by = group.world_size, group.started_by

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
        batches = self._seams.loader.length(self.loaders[0]) if self.loaders else None
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
        if id(optimizer) not in self._optimizers:
            self._optimizers[id(optimizer)] = _optimizer_facts(optimizer)
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
        roots = self._seams.forward.roots
        modules = [m for root in roots for m in root.modules()]
        # Only 4-D parameters can be in channels_last, which is the memory format of NCHW tensors.
        weights = [p for root in roots for p in root.parameters() if p.dim() == 4]
        return Profile(
            device=self.device(),
            loaders=tuple(self._seams.loader.facts(own) for own in self.loaders or ()),
            optimizers=tuple(self._optimizers.values()),
            parameters=sum(r.parameters for r in roots.values()),
            repeated_blocks=len(blocks_of(roots)),
            program_checkpointing=(
                "checkpoint" in self._seams.uses.seen or self._seams.forward.computes_again
            ),
            conv2d_layers=sum(isinstance(m, nn.Conv2d) for m in modules),
            channels_last=any(_lies_channels_last(w) for w in weights),
            program_autocast=self._seams.autocast.own_dtype,
            program_scaler=self._seams.autocast.has_own_scaler,
            weights_dtype=_weights_dtype(roots),
            program_compile=bool(frames_compiled()) or any(r._compiled_call_impl for r in roots),  # noqa: SLF001
            num_threads=torch.get_num_threads(),
            interop_threads=torch.get_num_interop_threads(),
            cudnn_benchmark=cudnn.benchmark,
            matmul_precision=matmul_precision(self.device()),
            flush_denormal=_flushes_denormals(),
            mmap_threshold=malloc.mmap_threshold() if self.device() == "cpu" else None,
            deterministic_algorithms=(
                torch.are_deterministic_algorithms_enabled() or cudnn.deterministic
            ),
            anomaly_detection=torch.is_anomaly_enabled(),
            calls_sdpa="scaled_dot_product_attention" in self._seams.uses.seen,
            sdpa_backend=sdpa_backend(),
            profiles=profiles(),
            copies_without_blocking=self._seams.transfer.own_non_blocking,
            zero_grad_to_none=self._seams.clearing.own_to_none,
            preloaded=os.environ.get("LD_PRELOAD", ""),
            cuda_alloc_conf=os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""),
            config_reads=dict(config_reads),
            trainer=self._seams.trainers.in_use,
            reads_ahead=self.reads_ahead or self.loader_thread,
            flags=self._seams.flags.all(),
            distributes_itself=self._distributes_itself(roots),
            world_size=self._world_size,
            starts_ranks=self._started_by,
            batch_norm_layers=sum(isinstance(m, BatchNorms) for m in modules),
            stages=_stages(roots),
            avoids_backward="grad" in self._seams.uses.seen and not self._seams.scaling.passes,
            holds_open=self._seams.loader.held_open(self.loaders[0]) if self.loaders else "",
            batches_per_step=self.batches_per_whole_step,
            bounded_by_steps=self._bounded_by_steps,
            length=self._run_length,
            steps_by_hand=str(self._seams.by_hand.place) if self.lead is None else "",
        )

    def _distributes_itself(self, roots: Iterable[nn.Module]) -> str:
        """Return the API with which the program distributes its training; empty if it does not.

        A program that only prepares for several devices, for example through Accelerate, counts
        too: it would use them if it were launched with them.
        """
        if self._seams.distribution.is_needed:
            return ""  # autotune distributes the program, so any wrapper found is autotune's
        if trainer := self._seams.trainers.in_use:
            return TRAINERS[trainer]
        state = sys.modules.get("accelerate.state")
        if state is not None and state.AcceleratorState._shared_state:  # noqa: SLF001
            return ACCELERATE
        names = {type(m).__name__ for root in roots for m in root.modules()}
        if found := [name for name in WRAPPERS if name in names]:
            return WRAPPERS[found[0]]
        is_open = distributed.is_available() and distributed.is_initialized()
        return "torch.distributed" if is_open else ""


def _optimizer_facts(optimizer: Optimizer) -> OptimizerFacts:
    families = tuple(c.__name__ for c in type(optimizer).__mro__ if issubclass(c, Optimizer))
    return OptimizerFacts(
        type(optimizer).__name__,
        families,
        rates_of(optimizer),
        implementation_of(optimizer),
        implementations_of(optimizer),
        _has_own_step(optimizer),
        initial_rates_of(optimizer),
    )


def _has_own_step(optimizer: Optimizer) -> bool:
    """Return whether a class from outside torch defines the optimizer's ``step``.

    Wrappers that autotune has put around a class's step are skipped.
    """
    for cls in type(optimizer).__mro__:
        step = vars(cls).get("step")
        if step is not None and not step.__module__.startswith("autotune."):
            return not cls.__module__.startswith("torch.optim")
    return True


def _stages(roots: Collection[nn.Module]) -> int:
    """Return the number of children if the only root module is an ``nn.Sequential``; else 0."""
    models = [root for root in roots if isinstance(root, nn.Sequential)]
    return len(models[0]) if len(models) == len(roots) == 1 else 0


def _flushes_denormals() -> bool:
    """Return whether this thread's arithmetic treats denormal numbers as 0.

    torch can set this mode but has no function that reads it, so a product is computed.
    """
    return float(torch.tensor([1e-310], dtype=torch.float64) * 1) == 0.0


def _lies_channels_last(weight: torch.Tensor) -> bool:
    return weight.is_contiguous(memory_format=torch.channels_last) and not weight.is_contiguous()


def _weights_dtype(roots: Iterable[nn.Module]) -> str:
    """Return the dtype of the floating-point parameters; the smallest if they differ."""
    dtypes = {p.dtype for root in roots for p in root.parameters() if p.is_floating_point()}
    smallest = min(dtypes, key=lambda dtype: dtype.itemsize, default=torch.float32)
    return str(smallest).removeprefix("torch.")
