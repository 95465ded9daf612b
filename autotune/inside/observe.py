"""Observer: what the first steps tell about the program, until its Profile is known."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Iterable, Mapping
from threading import get_ident
from time import perf_counter
from typing import Any

import torch
from torch import distributed, nn
from torch.backends import cuda, cudnn
from torch.nn.modules.batchnorm import _BatchNorm as BatchNorms
from torch.optim import Optimizer
from torch.utils.data import DataLoader

from autotune.config import KnobValue
from autotune.inside.compiled import frames_compiled
from autotune.inside.feed import Feed
from autotune.inside.seams import Seams
from autotune.inside.seams.checkpoint import blocks_of
from autotune.inside.seams.optimizer import implementation_of, implementations_of
from autotune.inside.seams.process import profiles
from autotune.profile import DatasetFacts, OptimizerFacts, Profile
from autotune.strategies.base import ACCELERATE, DDP, FABRIC, LIGHTNING, TRANSFORMERS
from autotune.wire import SLOW_STEP_S

OBSERVED_STEPS = 4
OBSERVED_SLOW_STEPS = 1  # after the three that tell which loaders train
TRAINERS = {"lightning": LIGHTNING, "transformers": TRANSFORMERS}
WRAPPERS = {  # the outermost first
    "_FabricModule": FABRIC,
    "DistributedDataParallel": DDP,
    "FullyShardedDataParallel": "FullyShardedDataParallel",
    "DataParallel": "nn.DataParallel",
}


class Observer:
    """Watches batches and optimizer steps.

    The loaders that train are those that handed out a batch, with gradients enabled, between the
    first optimizer's first and second step and again before its third: what the program iterates to
    look at a sample or to validate is not among them. None means a program without a DataLoader.

    Attributes:
        loader_thread: Another thread than the one that steps asks for the batches.
    """

    def __init__(self, seams: Seams, world_size: int = 1) -> None:
        self._seams = seams
        self._world_size = world_size
        self._since_step: list[DataLoader[Any]] = []
        self._before: list[DataLoader[Any]] = []
        self._lead: Optimizer | None = None
        self._lead_steps = 0
        self._samples: list[int] = []
        self._optimizers: dict[int, OptimizerFacts] = {}
        self._device = "cpu"
        self._feed: Feed | None = None
        self._batches = 0
        self._batches_by_step: list[int] = []
        self._stepped_at: list[float] = []
        self._ahead: dict[DataLoader[Any], int] = {}
        self.loader_thread = False
        self.loaders: tuple[DataLoader[Any], ...] | None = None

    @property
    def is_complete(self) -> bool:
        """Enough steps were seen."""
        wanted = OBSERVED_SLOW_STEPS if self._is_slow else OBSERVED_STEPS
        return self.loaders is not None and len(self._samples) >= wanted

    @property
    def _is_slow(self) -> bool:
        """Every step is long; ranks, which must agree when they meet, do not ask."""
        if self._world_size > 1 or len(self._stepped_at) < 3:
            return False
        first, second, third = self._stepped_at[:3]
        return min(second - first, third - second) > SLOW_STEP_S

    def batch_handed_out(self, feed: Feed) -> None:
        """Note a batch."""
        if not torch.is_grad_enabled():
            return
        if feed.loader not in self._since_step:
            self._since_step.append(feed.loader)
        self._ahead[feed.loader] = feed.thread
        self._batches = self._batches + 1 if feed is self._feed else 1
        self._feed = feed

    def optimizer_stepped(self, optimizer: Optimizer) -> bool:
        """Note a step; return whether it belongs to the optimizer that stepped first of all."""
        if id(optimizer) not in self._optimizers:
            self._optimizers[id(optimizer)] = _optimizer_facts(optimizer)
        if self._lead is None:
            self._lead = optimizer
            self._device = optimizer.param_groups[0]["params"][0].device.type
        if optimizer is not self._lead:
            return False
        self._lead_steps += 1
        if self._lead_steps <= 3:
            self._stepped_at.append(perf_counter())
        self._batches_by_step.append(self._batches)
        if self._lead_steps == 3:
            both = [own for own in self._since_step if own in self._before]
            foreign = [own for own, thread in self._ahead.items() if thread != get_ident()]
            self.loaders = tuple(both or self._since_step[-1:] or foreign)
            self.loader_thread = any(own in foreign for own in self.loaders)
            self._ahead.clear()
        self._before, self._since_step = self._since_step, []
        return True

    def is_training(self, feed: Feed) -> bool:
        """Tell whether a feed's loader drives optimizer steps, by what is known so far."""
        return (
            self.loaders is not None
            and feed.wants_gradients
            and any(feed.loader is own for own in self.loaders)
        )

    def step_ended(self, samples: int) -> None:
        """Note the samples of a whole step."""
        self._samples.append(samples)

    @property
    def _reads_ahead(self) -> bool:
        """More batches were out at the third step than three steps take."""
        _, second, third = self._batches_by_step[:3]
        per_step = third - second
        return per_step > 0 and third > 3 * per_step

    def device(self) -> str:
        """Return the device type of the parameters that are trained."""
        return self._device

    def profile(self, config_reads: Mapping[str, KnobValue]) -> Profile:
        """Return what was seen."""
        roots = self._seams.forward.roots
        modules = [m for root in roots for m in root.modules()]
        weights = [p for root in roots for p in root.parameters() if p.dim() == 4]
        return Profile(
            device=self.device(),
            loaders=tuple(self._seams.loader.facts(own) for own in self.loaders or ()),
            optimizers=tuple(self._optimizers.values()),
            root_modules=tuple(type(root).__name__ for root in roots),
            parameters=sum(r.parameters for r in roots.values()),
            repeated_blocks=len(blocks_of(roots)),
            own_checkpointing="checkpoint" in self._seams.uses.seen,
            conv2d_layers=sum(isinstance(m, nn.Conv2d) for m in modules),
            channels_last=any(_lies_channels_last(w) for w in weights),
            own_autocast=self._seams.autocast.own_dtype,
            own_scaler=self._seams.autocast.has_own_scaler,
            weights_dtype=_weights_dtype(roots),
            own_compile=bool(frames_compiled()) or any(r._compiled_call_impl for r in roots),  # noqa: SLF001
            num_threads=torch.get_num_threads(),
            interop_threads=torch.get_num_interop_threads(),
            cudnn_benchmark=cudnn.benchmark,
            matmul_precision=torch.get_float32_matmul_precision(),
            flush_denormal=_flushes_denormals(),
            deterministic_algorithms=(
                torch.are_deterministic_algorithms_enabled() or cudnn.deterministic
            ),
            anomaly_detection=torch.is_anomaly_enabled(),
            calls_sdpa="scaled_dot_product_attention" in self._seams.uses.seen,
            sdpa_backend=_sdpa_backend(),
            profiles=profiles(),
            copies_without_blocking=self._seams.transfer.own_non_blocking,
            zero_grad_to_none=self._seams.optimizer.own_to_none,
            preloaded=os.environ.get("LD_PRELOAD", ""),
            cuda_alloc_conf=os.environ.get("PYTORCH_CUDA_ALLOC_CONF", ""),
            samples_per_step=sum(self._samples) / len(self._samples),
            torch_version=torch.__version__,
            config_reads=dict(config_reads),
            trainer=self._seams.trainers.in_use,
            reads_ahead=self._reads_ahead or self.loader_thread,
            flags=self._seams.flags.all(),
            distributes_itself=self._distributes_itself(roots),
            world_size=self._world_size,
            batch_norm_layers=sum(isinstance(m, BatchNorms) for m in modules),
            stages=_stages(roots),
            dataset=self._dataset(),
            loader_thread=self.loader_thread,
        )

    def _dataset(self) -> DatasetFacts:
        """Return what is known of the dataset that trains, of several of the first."""
        loaders = self.loaders or ()
        return self._seams.loader.dataset_facts(loaders[0]) if loaders else DatasetFacts()

    def _distributes_itself(self, roots: Iterable[nn.Module]) -> str:
        """By what the program trains on several devices, or would if it were launched so."""
        if self._seams.distribution.is_needed:
            return ""  # what is to be seen of it is ours
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
    lrs = tuple(float(g["lr"]) for g in optimizer.param_groups if "lr" in g)
    return OptimizerFacts(
        type(optimizer).__name__,
        families,
        lrs,
        implementation_of(optimizer),
        implementations_of(optimizer),
    )


def _stages(roots: Collection[nn.Module]) -> int:
    """Parts of the one model in a row, 0 where there is none such."""
    models = [root for root in roots if isinstance(root, nn.Sequential)]
    return len(models[0]) if len(models) == len(roots) == 1 else 0


def _flushes_denormals() -> bool:
    """Tell whether this thread's arithmetic takes denormal numbers for 0; torch does not say."""
    return float(torch.tensor([1e-310], dtype=torch.float64) * 1) == 0.0


def _sdpa_backend() -> str:
    enabled = {
        "flash": cuda.flash_sdp_enabled(),
        "efficient": cuda.mem_efficient_sdp_enabled(),
        "math": cuda.math_sdp_enabled(),
        "cudnn": cuda.cudnn_sdp_enabled(),
    }
    names = [name for name, is_on in enabled.items() if is_on]
    return names[0] if len(names) == 1 else "auto"


def _lies_channels_last(weight: torch.Tensor) -> bool:
    return weight.is_contiguous(memory_format=torch.channels_last) and not weight.is_contiguous()


def _weights_dtype(roots: Iterable[nn.Module]) -> str:
    """The dtype of parameters, of the fewest bits where they differ."""
    dtypes = {p.dtype for root in roots for p in root.parameters() if p.is_floating_point()}
    smallest = min(dtypes, key=lambda dtype: dtype.itemsize, default=torch.float32)
    return str(smallest).removeprefix("torch.")
