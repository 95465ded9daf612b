"""Profile: what the program's first, untouched steps revealed about it.

A rig observes these facts before any knob acts. The knobs read them to decide which values are
worth trying and which would be wrong for this program.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autotune.program.config import KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.flags import Flag
from autotune.program.run_length import RunLength


@dataclass(frozen=True)
class LoaderFacts:
    """One DataLoader as the program built it.

    Attributes:
        dataset: Class name of the dataset.
        dataset_len: Number of samples; None for a dataset without a length.
        batch_size: Samples per batch; None with a custom batch sampler or without batching.
        prefetch_factor: Batches that each worker holds ready; None without workers.
        sampler: Class name of the sampler.
        has_batch_sampler: Whether the program passed its own batch sampler.
        iterable: Whether the dataset is an IterableDataset.
        ordinal: How many DataLoaders with otherwise equal facts were built before this one.
        start_method: How its workers start: ``fork``, ``forkserver`` or ``spawn``.
        site: The line of code that built it. It is kept only if loaders with equal facts were built
            in different places; otherwise, or if unknown, it is empty.
        twins: How many DataLoaders with otherwise equal facts existed when training began; 0 if
            unknown. Loaders built after that are taken for the same loader of a later epoch.
        is_rewrapped: Whether the program replaced its batch sampler after building it, in a way
            that autotune cannot follow.
        batch_sampler: Class name of a batch sampler that is not PyTorch's; empty otherwise.
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
    """One optimizer of the program.

    Attributes:
        families: Names of its class and of the optimizers among its base classes.
        lrs: The learning rate of each of its parameter groups at the first step; 0.0 in a warm-up
            that begins there.
        implementation: The one in use: ``for-loop``, ``foreach`` or ``fused``.
        implementations: Those that it offers on its parameters' device.
        initial_lrs: The same before any of torch's schedulers changed it; as ``lrs`` without one.
        has_own_step: Whether its step is not one of torch's. torch's steps update each parameter
            independently; another may combine parameters.
    """

    name: str
    families: tuple[str, ...]
    lrs: tuple[float, ...]
    implementation: str = "for-loop"
    implementations: tuple[str, ...] = ()
    has_own_step: bool = False
    initial_lrs: tuple[float, ...] = ()


SEVERAL_LOADERS = (
    "the program trains from {} loaders at once, and autotune can change only a single one"
)


@dataclass(frozen=True)
class Profile:
    """What a rig observed about the program in its first, untouched steps.

    Attributes:
        device: Device type of the model's parameters: ``cpu``, ``cuda``, …
        loaders: The DataLoaders whose iteration drives optimizer steps; empty without a DataLoader.
        optimizers: The optimizers that stepped, in the order of their first steps.
        parameters: Number of parameters in the root modules, the outermost that own any.
        repeated_blocks: Number of equal blocks (such as transformer layers) in the model; 0 if it
            has none.
        program_checkpointing: Whether the program uses activation checkpointing itself.
        conv2d_layers: Number of 2-D convolutions in the root modules.
        channels_last: Whether a 4-D parameter already has the channels_last memory format.
        program_autocast: dtype of the program's own autocast; None if it uses none.
        program_scaler: Whether the program scales its losses with its own GradScaler.
        weights_dtype: dtype of the floating-point parameters; the smallest if they differ.
        program_compile: Whether the program compiles its model itself.
        num_threads: torch's intra-op threads when training began.
        interop_threads: torch's inter-op threads.
        cudnn_benchmark: The program's setting of ``torch.backends.cudnn.benchmark``.
        matmul_precision: The program's setting of ``torch.set_float32_matmul_precision``.
        flush_denormal: Whether its arithmetic treats denormal numbers as 0.
        mmap_threshold: From how many bytes on malloc returns a block as soon as it is freed; None
            where malloc is not glibc's, the environment tunes it, the model is on another device
            than the CPU, or page faults take next to none of a step's time.
        deterministic_algorithms: Whether it requires deterministic algorithms of torch or cuDNN.
        anomaly_detection: Whether autograd's anomaly detection is on.
        calls_sdpa: Whether it calls ``scaled_dot_product_attention``.
        sdpa_backend: The only attention backend that it leaves enabled, or ``auto``.
        profiles: Whether one of torch's profilers is recording.
        copies_without_blocking: Whether it copies batches to the device with ``non_blocking=True``.
        zero_grad_to_none: The ``set_to_none`` that it passes to ``zero_grad``; None if it never
            calls that method.
        preloaded: The environment's LD_PRELOAD.
        cuda_alloc_conf: The environment's PYTORCH_CUDA_ALLOC_CONF.
        config_reads: Knobs that the program reads from its ``config`` parameter, with the values it
            got. The program applies these itself, and the seams leave them alone.
        trainer: The library whose trainer runs the loop: ``lightning``, ``transformers`` or empty.
        reads_ahead: Whether it fetches the next batch before it trains on the current one, or
            another thread fetches the batches.
        flags: The options of its command line, or the parameters of its function.
        distributes_itself: The API with which it trains on several devices; empty if it does not.
        world_size: Number of ranks that it was started with, or that it starts.
        starts_ranks: The API with which it starts its training processes, such as
            ``torch.multiprocessing.spawn``; empty if it trains in the processes that were started.
        batch_norm_layers: Number of BatchNorm layers in the root modules.
        stages: Number of children of its only root module if that is an ``nn.Sequential``; else 0.
        avoids_backward: Whether it computes gradients only with ``torch.autograd.grad``.
        holds_open: What its dataset has held open since the loader was built; empty if nothing.
        batches_per_step: Batches of the training loader per step, in the untouched steps.
        steps_by_hand: Where it computes gradients and updates its weights without an optimizer,
            such as ``train.py:41``; empty if an optimizer does.
        bounded_by_steps: The code that fixes the number of steps regardless of the batch size, such
            as ``train.py:57: for step in range(200)``; empty if none was seen.
        length: How many epochs it trains.
    """

    device: str
    loaders: tuple[LoaderFacts, ...]
    optimizers: tuple[OptimizerFacts, ...]
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
    mmap_threshold: int | None = None
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
    holds_open: str = ""
    batches_per_step: float = 1.0
    bounded_by_steps: str = ""
    length: RunLength = field(default_factory=RunLength)

    @property
    def training_loader(self) -> LoaderFacts | None:
        """The loader that trains; None if there is not exactly one."""
        return self.loaders[0] if len(self.loaders) == 1 else None

    @property
    def accumulates(self) -> bool:
        """Whether the program itself makes one step from several batches."""
        return self.batches_per_step > 1

    @property
    def without_training_loader(self) -> NotOffered | None:
        """Why knobs of the loader cannot act; None if exactly one DataLoader trains."""
        if not self.loaders:
            return NotOffered("the program trains without a torch DataLoader")
        if self.training_loader is None:
            return NotOffered(SEVERAL_LOADERS.format(len(self.loaders)))
        return None

    @property
    def without_workers(self) -> NotOffered | None:
        """Why a loader without workers cannot get any; None if it can, or already has some."""
        if refusal := self.without_training_loader:
            return refusal
        if self.loaders[0].num_workers:  # its items come from copies of the dataset already
            return None
        if self.loaders[0].iterable:
            return NotOffered("the dataset is iterable: each worker may repeat all its samples")
        if self.holds_open:
            return NotOffered(
                f"workers would share what the dataset holds open ({self.holds_open}): open it in "
                "__getitem__, when the first item is requested, to allow workers"
            )
        return None

    def unless_by_steps(self, domain: Domain) -> Domain | NotOffered:
        """Return a domain that enlarges the batch, or a refusal if the number of steps is fixed.

        With a fixed number of steps a larger batch means more training, not an earlier end, so the
        user has to name the knob. The refusal keeps *domain* for that case.
        """
        if not self.bounded_by_steps:
            return domain
        return NotOffered(
            f"the program makes a fixed number of steps ({self.bounded_by_steps}): more samples in "
            "each would be more training, not an earlier end; name the knob in --tune or --fix to "
            "try it",
            by_name=domain,
        )

    def without_optimizer(self, so: str) -> NotOffered | None:
        """Why knobs that need an optimizer cannot act; None if an optimizer steps.

        Args:
            so: The consequence for the knob, which completes the sentence; it begins with the
                comma or semicolon before it.
        """
        if not self.steps_by_hand:
            return None
        return NotOffered(f"the program updates its weights by hand ({self.steps_by_hand}){so}")
