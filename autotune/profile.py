"""Profile: what the program's first, untouched steps revealed about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autotune.config import KnobValue


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


@dataclass(frozen=True)
class OptimizerFacts:
    """One optimizer: its class, the names of its base classes, and the learning rates it had."""

    name: str
    families: tuple[str, ...]
    lrs: tuple[float, ...]


@dataclass(frozen=True)
class Profile:
    """The program as observed.

    Attributes:
        device: Device type of the model's parameters: ``cpu``, ``cuda``, …
        loaders: The loaders whose iteration drives optimizer steps; empty without a DataLoader.
        root_modules: Class names of the outermost modules that own parameters.
        parameters: Number of parameters in the root modules.
        conv2d_layers: Number of 2-D convolutions in the root modules.
        channels_last: Some 4-D parameter already lies in channels_last order.
        own_autocast: dtype in which the program itself computes, by autocast or by its weights.
        own_compile: The program compiles its model itself.
        num_threads: torch's intra-op threads when training began.
        cudnn_benchmark: The program's own setting.
        samples_per_step: Samples per optimizer step in the untouched steps.
        config_reads: Knobs that the program reads from its ``config`` parameter, with the value it
            got: these are its own business and the seams leave them alone.
    """

    device: str
    loaders: tuple[LoaderFacts, ...]
    optimizers: tuple[OptimizerFacts, ...]
    root_modules: tuple[str, ...]
    parameters: int
    conv2d_layers: int
    channels_last: bool
    own_autocast: str | None
    own_compile: bool
    num_threads: int
    cudnn_benchmark: bool
    samples_per_step: float
    torch_version: str
    config_reads: Mapping[str, KnobValue] = field(default_factory=dict)

    @property
    def training_loader(self) -> LoaderFacts | None:
        """The loader that trains, None when there is none or more than one."""
        return self.loaders[0] if len(self.loaders) == 1 else None
