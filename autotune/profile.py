"""Profile: what the program's first, untouched steps revealed about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from autotune.config import KnobValue
from autotune.domain import NotOffered
from autotune.flags import Flag


@dataclass(frozen=True)
class LoaderFacts:
    """One DataLoader as the program built it.

    Attributes:
        ordinal: How many DataLoaders with otherwise equal facts were built before this one.
        dataset: Class name of the dataset.
        dataset_len: Number of samples, None for a dataset without a length.
        batch_size: Samples per batch; None with a custom batch sampler or without batching.
        prefetch_factor: Batches each worker holds ready; None without workers.
        has_batch_sampler: The program passed its own batch sampler.
        start_method: How its workers begin: ``fork``, ``forkserver`` or ``spawn``.
    """

    dataset: str
    dataset_len: int | None
    batch_size: int | None
    num_workers: int
    prefetch_factor: int | None
    pin_memory: bool
    persistent_workers: bool
    sampler: str
    has_batch_sampler: bool
    iterable: bool
    drop_last: bool
    ordinal: int = 0
    in_order: bool = True
    start_method: str = "fork"


@dataclass(frozen=True)
class OptimizerFacts:
    """One optimizer.

    Attributes:
        families: Names of its class and the optimizers among its base classes.
        lrs: The learning rates it had.
        implementation: The one in use: ``for-loop``, ``foreach`` or ``fused``.
        implementations: Those that it has for its parameters' device.
    """

    name: str
    families: tuple[str, ...]
    lrs: tuple[float, ...]
    implementation: str = "for-loop"
    implementations: tuple[str, ...] = ()


class HandKind(StrEnum):
    """What a program's loop may do by its own hand, besides calling models and optimizers."""

    PARAMETERS = "changes parameters outside of the optimizer's step"
    GRADIENTS = "changes gradients"
    KEPT = "keeps from step to step what it computes from parameters or gradients"
    THROWN = "clears gradients between the backward pass and the step, in every step"
    PASSES = "computes gradients again within the optimizer's step"
    RATE = "sets the learning rate in every step"
    SCHEDULE = "steps a scheduler with each batch, planned by the length of the loader"


@dataclass(frozen=True)
class HandWork:
    """One thing that the program's loop was seen doing by its own hand.

    Attributes:
        what: The method, class or count that tells it, such as ``mul_``.
        where: File and line, empty where that is unknown.
    """

    kind: HandKind
    what: str
    where: str

    @property
    def evidence(self) -> str:
        """What and where, as in ``train.py:57: mul_``."""
        return f"{self.where}: {self.what}" if self.where else self.what


@dataclass(frozen=True)
class Profile:
    """The program as observed.

    Attributes:
        device: Device type of the model's parameters: ``cpu``, ``cuda``, …
        loaders: The loaders whose iteration drives optimizer steps; empty without a DataLoader.
        root_modules: Class names of the outermost modules that own parameters.
        parameters: Number of parameters in the root modules.
        repeated_blocks: Number of blocks of one kind that the model consists of, 0 without such.
        own_checkpointing: The program computes activations again by itself.
        conv2d_layers: Number of 2-D convolutions in the root modules.
        channels_last: Some 4-D parameter already lies in channels_last order.
        own_autocast: dtype of the program's own autocast, None without one.
        own_scaler: The program scales its losses by a GradScaler of its own.
        weights_dtype: dtype of its floating-point parameters, the smallest where they differ.
        own_compile: The program compiles its model itself.
        num_threads: torch's intra-op threads when training began.
        interop_threads: torch's inter-op threads.
        cudnn_benchmark: The program's own setting.
        matmul_precision: The program's own ``torch.set_float32_matmul_precision``.
        flush_denormal: Its arithmetic takes denormal numbers for 0.
        deterministic_algorithms: It asks torch or cuDNN for them.
        anomaly_detection: It has autograd search for the origin of NaN.
        calls_sdpa: It calls ``scaled_dot_product_attention``.
        sdpa_backend: The one backend of that which it leaves enabled, or ``auto``.
        profiles: A profiler of torch's records what it does.
        copies_without_blocking: It asks for non-blocking copies to the device.
        zero_grad_to_none: What it passes to ``zero_grad``; None where it calls no such method.
        preloaded: The environment's LD_PRELOAD.
        cuda_alloc_conf: The environment's PYTORCH_CUDA_ALLOC_CONF.
        samples_per_step: Samples per optimizer step in the untouched steps.
        config_reads: Knobs that the program reads from its ``config`` parameter, with the value it
            got: these are its own business and the seams leave them alone.
        trainer: The library whose trainer runs its loop: ``lightning``, ``transformers`` or empty.
        reads_ahead: It asks for the next batch before it trains on the one before.
        flags: What its own command line, or its function, takes.
        distributes_itself: By what it trains on several devices by itself, empty if it does not.
        world_size: Ranks that it was started with.
        batch_norm_layers: Number of BatchNorm layers in the root modules.
        stages: Parts of its one root module in a row, 0 where that is no nn.Sequential.
        batches_per_step: Batches of the training loader that a step took, in the untouched steps.
        by_hand: What its loop does by its own hand, in two of them.
    """

    device: str
    loaders: tuple[LoaderFacts, ...]
    optimizers: tuple[OptimizerFacts, ...]
    root_modules: tuple[str, ...]
    parameters: int
    repeated_blocks: int
    own_checkpointing: bool
    conv2d_layers: int
    channels_last: bool
    own_autocast: str | None
    own_scaler: bool
    weights_dtype: str
    own_compile: bool
    num_threads: int
    interop_threads: int
    cudnn_benchmark: bool
    matmul_precision: str
    flush_denormal: bool
    deterministic_algorithms: bool
    anomaly_detection: bool
    calls_sdpa: bool
    sdpa_backend: str
    profiles: bool
    copies_without_blocking: bool
    zero_grad_to_none: bool | None
    preloaded: str
    cuda_alloc_conf: str
    samples_per_step: float
    torch_version: str
    config_reads: Mapping[str, KnobValue] = field(default_factory=dict)
    trainer: str = ""
    reads_ahead: bool = False
    flags: tuple[Flag, ...] = ()
    distributes_itself: str = ""
    world_size: int = 1
    batch_norm_layers: int = 0
    stages: int = 0
    batches_per_step: float = 1.0
    by_hand: tuple[HandWork, ...] = ()

    @property
    def training_loader(self) -> LoaderFacts | None:
        """The loader that trains, None when there is none or more than one."""
        return self.loaders[0] if len(self.loaders) == 1 else None

    @property
    def accumulates(self) -> bool:
        """The program itself makes one step of several batches."""
        return self.batches_per_step > 1

    def hand_work(self, kind: HandKind) -> HandWork | None:
        """Return the first thing of a kind that the loop does by its own hand, None without."""
        return next((work for work in self.by_hand if work.kind is kind), None)

    @property
    def without_training_loader(self) -> NotOffered | None:
        """Why knobs of the loader cannot act, None when one loader trains."""
        if not self.loaders:
            return NotOffered("the program trains without a DataLoader")
        if self.training_loader is None:
            return NotOffered(f"{len(self.loaders)} loaders train together")
        return None
