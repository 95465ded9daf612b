"""Profile: what the program's first, untouched steps revealed about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from autotune.program.config import KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.flags import Flag


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
        site: Tells the lines that built it from others, empty where that is not known.
        twins: How many with otherwise equal facts there were when training began; 0 if unknown.
        is_rewrapped: The program put another batch sampler into it after it had built it, which is
            not seen to go through the loader's own.
        batch_sampler: Class name of one that is not PyTorch's, empty otherwise.
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
    site: str = ""
    twins: int = 0
    is_rewrapped: bool = False
    batch_sampler: str = ""


@dataclass(frozen=True)
class OptimizerFacts:
    """One optimizer.

    Attributes:
        families: Names of its class and the optimizers among its base classes.
        lrs: The learning rates it had.
        implementation: The one in use: ``for-loop``, ``foreach`` or ``fused``.
        implementations: Those that it has for its parameters' device.
        has_own_step: Its step is none of torch's, which treat each parameter by itself.
    """

    name: str
    families: tuple[str, ...]
    lrs: tuple[float, ...]
    implementation: str = "for-loop"
    implementations: tuple[str, ...] = ()
    has_own_step: bool = False


# Why copies of a dataset, in workers, would give other items; of its name and its parts
DRAWS = "items of {} draw from a generator of their own ({}), which each worker would copy"
HOLDS_OPEN = (
    "workers would share what {} holds open ({}): open it in __getitem__, when the first item is "
    "asked for, to get workers"
)
CHANGED = "the program changes {} between two batches ({}), and workers would not see it"
DEPENDS = "items of {} depend on what earlier ones left ({}), and each worker would have its own"
STEERED = (
    "the program changes the order of {} between two batches ({}), and workers are asked for "
    "batches ahead of that"
)


MAX_NAMED = 4  # parts of a dataset in one sentence
NO_DATALOADER = "which is no torch DataLoader: only the program's own flags reach it"


@dataclass(frozen=True)
class DatasetFacts:
    """What the first batches showed of a training loader's dataset; parts as a program writes them.

    Attributes:
        name: Class name of the dataset.
        drawn_from: Generators of its own from which items draw.
        handles: What was open when its loader was built, each with what it is.
        set_by_program: What items read and the program changed between two batches.
        changed_by_items: What items change and later items read, caches apart.
        steered_order: What the program changed of the sampler between two batches.
    """

    name: str = ""
    drawn_from: tuple[str, ...] = ()
    handles: tuple[str, ...] = ()
    set_by_program: tuple[str, ...] = ()
    changed_by_items: tuple[str, ...] = ()
    steered_order: tuple[str, ...] = ()

    @property
    def against_workers(self) -> str:
        """Why workers would load other items than the program itself does, empty if they do not."""
        cases = (
            (self.drawn_from, DRAWS),
            (self.handles, HOLDS_OPEN),
            (self.set_by_program, CHANGED),
            (self.changed_by_items, DEPENDS),
            (self.steered_order, STEERED),
        )
        return next((text.format(self.name, _listed(p)) for p, text in cases if p), "")


def _listed(parts: tuple[str, ...]) -> str:
    """Name a few parts, and say how many more there are."""
    more = len(parts) - MAX_NAMED
    return ", ".join(parts[:MAX_NAMED]) + (f" and {more} more" if more > 0 else "")


class HandKind(StrEnum):
    """What a program's loop may do by its own hand, besides calling models and optimizers."""

    PARAMETERS = "changes parameters outside of the optimizer's step"
    GRADIENTS = "changes gradients"
    KEPT = "keeps from step to step what it computes from parameters or gradients"
    THROWN = "clears gradients between the backward pass and the step, in every step"
    PASSES = "computes gradients again within the optimizer's step"
    RATE = "sets the learning rate in every step"
    SCHEDULE = "steps a scheduler with each batch, planned by the length of the loader"
    COUNTED_SCHEDULE = "steps a scheduler with each batch, and does not plan it by the loader"


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
        program_checkpointing: The program computes activations again by itself.
        conv2d_layers: Number of 2-D convolutions in the root modules.
        channels_last: Some 4-D parameter already lies in channels_last order.
        program_autocast: dtype of the program's own autocast, None without one.
        program_scaler: The program scales its losses by a GradScaler of its own.
        weights_dtype: dtype of its floating-point parameters, the smallest where they differ.
        program_compile: The program compiles its model itself.
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
        clears_by_model: Where it calls ``zero_grad`` of a module, as in ``train.py:57``; empty if
            only of optimizers.
        preloaded: The environment's LD_PRELOAD.
        cuda_alloc_conf: The environment's PYTORCH_CUDA_ALLOC_CONF.
        samples_per_step: Samples per optimizer step in the untouched steps.
        config_reads: Knobs that the program reads from its ``config`` parameter, with the value it
            got: these are its own business and the seams leave them alone.
        trainer: The library whose trainer runs its loop: ``lightning``, ``transformers`` or empty.
        reads_ahead: It asks for the next batch before it trains on the one before.
        flags: What its own command line, or its function, takes.
        distributes_itself: By what it trains on several devices by itself, empty if it does not.
        world_size: Ranks that it was started with, or that it starts.
        starts_ranks: By what it starts the processes that train itself, as in
            ``torch.multiprocessing.spawn``; empty where it trains in those that were started.
        batch_norm_layers: Number of BatchNorm layers in the root modules.
        stages: Parts of its one root module in a row, 0 where that is no nn.Sequential.
        avoids_backward: It computes its gradients by ``torch.autograd.grad`` alone.
        blocks_change: What a pass through a repeated block was seen to change and a second pass
            would change again, as ``Block: name``; empty for nothing.
        shared_weight: Name of a 4-D parameter whose memory other tensors share, empty without one.
        carries_state: Class name of a module that gets with a batch what it returned for the one
            before; empty if none does.
        dataset: What its dataset does that copies of it would do otherwise.
        loader_thread: Another thread than the one that trains asks for the batches.
        batches_per_step: Batches of the training loader that a step took, in the untouched steps.
        by_hand: What its loop does by its own hand, in two of them.
        in_batch_loss: By what its loss compares samples of one batch, and where; empty if not.
        curved_loss: What makes its loss no sum of means over samples, and where; empty if nothing.
        steps_by_hand: Where it computes the gradients by which it changes its weights itself, as in
            ``train.py:41``; empty where an optimizer does.
        foreign_loader: What hands out its batches, where that is a loader and no torch DataLoader,
            as in ``fastai.data.load.DataLoader (num_workers=1)``.
        bounded_by_steps: What in it says that it makes a number of steps whatever a batch holds, as
            in ``train.py:57: for step in range(200)``; empty where nothing was seen to say so.
    """

    device: str
    loaders: tuple[LoaderFacts, ...]
    optimizers: tuple[OptimizerFacts, ...]
    root_modules: tuple[str, ...]
    parameters: int
    repeated_blocks: int
    program_checkpointing: bool
    conv2d_layers: int
    channels_last: bool
    program_autocast: str | None
    program_scaler: bool
    weights_dtype: str
    program_compile: bool
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
    starts_ranks: str = ""
    batch_norm_layers: int = 0
    stages: int = 0
    avoids_backward: bool = False
    steps_by_hand: str = ""
    blocks_change: str = ""
    shared_weight: str = ""
    carries_state: str = ""
    dataset: DatasetFacts = DatasetFacts()
    loader_thread: bool = False
    batches_per_step: float = 1.0
    by_hand: tuple[HandWork, ...] = ()
    in_batch_loss: str = ""
    curved_loss: str = ""
    bounded_by_steps: str = ""
    foreign_loader: str = ""
    clears_by_model: str = ""

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
    def depends_on_batch_before(self) -> str | None:
        """Why batches cannot be cut in another way, as a clause, None where they can."""
        if not self.carries_state:
            return None
        return f"{self.carries_state} goes on with the state that it returned for the batch before"

    @property
    def without_training_loader(self) -> NotOffered | None:
        """Why knobs of the loader cannot act, None when one loader trains."""
        if self.foreign_loader:
            return NotOffered(f"its batches come from {self.foreign_loader}, {NO_DATALOADER}")
        if not self.loaders:
            return NotOffered("the program trains without a DataLoader")
        if self.training_loader is None:
            return NotOffered(f"{len(self.loaders)} loaders train together")
        return None

    @property
    def without_workers(self) -> NotOffered | None:
        """Why workers cannot be had where the program has none, None where they can."""
        if refusal := self.without_training_loader:
            return refusal
        if self.loaders[0].num_workers:
            return None
        if self.loaders[0].iterable:
            return NotOffered("the dataset is iterable: each worker may repeat all its samples")
        reason = self.dataset.against_workers
        return NotOffered(reason) if reason else None

    @property
    def ahead_of_order(self) -> NotOffered | None:
        """Why no more batches can be asked for ahead, None where the order stands for an epoch."""
        if not self.dataset.steered_order:
            return None
        return NotOffered(STEERED.format(self.dataset.name, _listed(self.dataset.steered_order)))

    def unless_by_steps(self, domain: Domain) -> Domain | NotOffered:
        """Return what a knob offers that puts more samples into a step, if steps are not fixed."""
        if not self.bounded_by_steps:
            return domain
        return NotOffered(
            f"the program makes a fixed number of steps ({self.bounded_by_steps}): more samples in "
            "each would be more training, not an earlier end; name the knob in --tune or --fix to "
            "try it",
            by_name=domain,
        )

    def without_optimizer(self, so: str) -> NotOffered | None:
        """Why knobs that need an optimizer cannot act, None where one steps.

        Args:
            so: What follows from it for the knob, as a clause.
        """
        if not self.steps_by_hand:
            return None
        return NotOffered(f"the program updates its weights by hand ({self.steps_by_hand}) {so}")
