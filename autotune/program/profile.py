"""Profile: what the program's first, untouched steps revealed about it.

A rig observes these facts before any knob acts. The knobs read them to decide which values are
worth trying and which would be wrong for this program.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from autotune.program.config import KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.flags import Flag

EPOCHS = frozenset(f"{before}epochs" for before in ("", "num_", "n_", "n", "max_", "num_train_"))
# Without "steps", "n_steps" and "num_steps", which often count the steps of something smaller
STEPS = frozenset(
    f"{before}_{word}"
    for word in ("steps", "iters", "iterations")
    for before in ("max", "total", "train", "max_train", "num_train", "training")
)


@dataclass(frozen=True)
class RunLength:
    """How long a program trains.

    Attributes:
        where: Where that is said, such as ``--epochs 30``.
        steps: Number of optimizer steps, where the program counts them instead of epochs.
    """

    epochs: float | None = None
    where: str = ""
    steps: float | None = None

    @property
    def bounded_by_steps(self) -> str:
        """What fixes the number of steps, whatever a batch holds; empty if nothing was seen to."""
        return "" if self.steps is None else self.where

    @property
    def count(self) -> str:
        """How long that is: ``25 epochs``, ``5,000 steps``."""
        if self.steps is not None:
            return f"{self.steps:,.0f} steps"
        return f"{self.epochs:g} {'epoch' if self.epochs == 1 else 'epochs'}"

    def __str__(self) -> str:
        return f"{self.count} ({self.where})"


def told_by(flags: Iterable[Flag]) -> RunLength:
    """Return what the program's flags say; a flag for the steps counts more than one for epochs."""
    for flag in (numbers := [flag for flag in flags if flag.number]):
        if flag.words & STEPS:
            return RunLength(where=f"{flag.name} {flag.number}", steps=flag.number)
    for flag in numbers:
        if flag.words & EPOCHS:
            return RunLength(flag.number, f"{flag.name} {flag.number}")
    return RunLength()


@dataclass(frozen=True, kw_only=True)
class LoaderFacts:
    """One DataLoader as the program built it.

    Attributes:
        dataset_len: Number of samples; None for a dataset without a length.
        batch_size: Samples per batch; None with a custom batch sampler or without batching.
        prefetch_factor: Batches that each worker holds ready; None without workers.
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
    prefetch_factor: int | None = None
    pin_memory: bool = False
    persistent_workers: bool = False
    sampler: str
    has_batch_sampler: bool = False
    iterable: bool = False
    drop_last: bool = False
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
class ModelFacts:
    """The program's root modules: the outermost ones that own parameters.

    Attributes:
        repeated_blocks: Number of equal blocks, such as transformer layers; 0 if it has none.
        convolutions: Layers of any number of dimensions, transposed ones included.
        stages: Number of children of the only root module if that is an ``nn.Sequential``; else 0.
        channels_last: Whether a 4-D parameter already has the channels_last memory format.
        replicas: Among how many devices an ``nn.DataParallel`` in it divides each batch; 1 if it
            only calls the model, 0 without one.
    """

    parameters: int
    repeated_blocks: int
    stages: int
    conv2d_layers: int
    convolutions: int
    batch_norm_layers: int
    channels_last: bool
    is_compiled: bool
    replicas: int = 0


@dataclass(frozen=True)
class PrecisionFacts:
    """The number formats in which the program itself trains; dtypes by torch's names.

    Attributes:
        weights_dtype: dtype of the floating-point parameters; the smallest if they differ.
        autocast: dtype of the program's autocast; None if it uses none.
    """

    weights_dtype: str
    autocast: str | None
    has_scaler: bool


@dataclass(frozen=True)
class TorchSettings:
    """torch's settings of the whole process, as the program has them when it trains.

    Those that a knob sets have its name.

    Attributes:
        cudnn: ``benchmark`` if ``torch.backends.cudnn.benchmark`` is on, else ``default``.
        matmul_precision: Precision of fp32 matrix products: ``highest``, ``high`` or ``medium``.
        deterministic_algorithms: Whether deterministic algorithms are required of torch or cuDNN.
        attention: The only attention backend that is enabled, or ``auto``; None if the program
            does not call ``scaled_dot_product_attention``.
    """

    threads: int
    cudnn: str
    matmul_precision: str
    flush_denormal: bool
    deterministic_algorithms: bool
    anomaly_detection: bool
    autograd_profiler: bool
    attention: str | None


@dataclass(frozen=True)
class AllocatorFacts:
    """What allocates the program's memory, on the host and on CUDA.

    Attributes:
        mmap_threshold: From how many bytes on malloc returns a block as soon as it is freed; None
            where malloc is not glibc's, the environment tunes it, the model is on another device
            than the CPU, or page faults take next to none of a step's time.
    """

    mmap_threshold: int | None
    cuda_alloc_conf: str


@dataclass(frozen=True)
class LoopFacts:
    """How the program's loop makes its steps.

    Attributes:
        loads_on: Device type of the first tensor of its loader's batches.
        trainer: The library whose trainer runs the loop: ``lightning``, ``transformers`` or empty.
        reads_ahead: Whether it fetches the next batch before it trains on the current one, or
            another thread fetches the batches.
        copies_without_blocking: Whether it copies batches to the device with ``non_blocking=True``.
        zero_grad_to_none: The ``set_to_none`` that it passes to ``zero_grad``; None if it never
            calls that method.
        against_scaling: Why its losses cannot be scaled for fp16, such as "the program computes
            gradients without backward()"; empty if nothing speaks against it.
        steps_by_hand: Where it computes gradients and updates its weights without an optimizer,
            such as ``train.py:41``; empty if an optimizer does.
    """

    loads_on: str = "cpu"
    trainer: str = ""
    batches_per_step: float = 1.0
    reads_ahead: bool = False
    copies_without_blocking: bool = False
    zero_grad_to_none: bool | None = None
    against_scaling: str = ""
    steps_by_hand: str = ""
    length: RunLength = field(default_factory=RunLength)

    @property
    def accumulates(self) -> bool:
        """Whether the program itself makes one step from several batches."""
        return self.batches_per_step > 1


@dataclass(frozen=True)
class RankFacts:
    """The program's processes that train together.

    Attributes:
        world_size: Number of ranks that the program was started with, or that it starts.
        distributed_by: The API with which the program itself trains on several devices, or prepares
            to; empty if it does not.
        started_by: The API with which it starts its training processes, such as
            ``torch.multiprocessing.spawn``; empty if it trains in the processes that were started.
    """

    world_size: int = 1
    distributed_by: str = ""
    started_by: str = ""


@dataclass(frozen=True)
class Profile:
    """What a rig observed about the program in its first, untouched steps.

    Attributes:
        device: Device type of the model's parameters: ``cpu``, ``cuda``, …
        loaders: The DataLoaders whose iteration drives optimizer steps; empty without a DataLoader.
        optimizers: The optimizers that stepped, in the order of their first steps.
        holds_open: What its dataset has held open since the loader was built; empty if nothing.
        flags: The options of its command line, or the parameters of its function.
        config_reads: Knobs that the program reads from its ``config`` parameter, with the values it
            got. The program applies these itself, and the seams leave them alone.
    """

    device: str
    loaders: tuple[LoaderFacts, ...]
    optimizers: tuple[OptimizerFacts, ...]
    model: ModelFacts
    precision: PrecisionFacts
    settings: TorchSettings
    allocators: AllocatorFacts
    loop: LoopFacts
    ranks: RankFacts
    holds_open: str = ""
    flags: tuple[Flag, ...] = ()
    config_reads: Mapping[str, KnobValue] = field(default_factory=dict)

    @property
    def is_data_parallel(self) -> bool:
        """Whether nothing but ``nn.DataParallel`` has the program train on several devices."""
        is_alone = not (self.ranks.distributed_by or self.ranks.started_by)
        return self.model.replicas > 1 and is_alone

    @property
    def arithmetic(self) -> str:
        """The data type of most of the arithmetic: "bf16", "fp16", "tf32" or "fp32".

        On CUDA, torch lets convolutions use TF32 by default, so a model with some counts as "tf32".
        """
        autocast = {"bfloat16": "bf16", "float16": "fp16"}.get(self.precision.autocast or "")
        has_tf32 = self.device == "cuda" and self.model.conv2d_layers
        return autocast or ("tf32" if has_tf32 else "fp32")

    @property
    def training_loader(self) -> LoaderFacts | None:
        """The loader that trains; None if there is not exactly one."""
        return self.loaders[0] if len(self.loaders) == 1 else None

    @property
    def without_training_loader(self) -> NotOffered | None:
        """Why knobs of the loader cannot act; None if exactly one DataLoader trains."""
        if not self.loaders:
            return NotOffered("the program trains without a torch DataLoader")
        if self.training_loader is None:
            return NotOffered(SEVERAL_LOADERS.format(len(self.loaders)))
        return None

    @property
    def loads_on_device(self) -> NotOffered | None:
        """Why loading cannot end in page-locked memory, nor begin in forks; None if it can."""
        if self.loop.loads_on == "cpu":
            return None
        return NotOffered(f"the loader's batches are on the {self.loop.loads_on} device already")

    @property
    def without_workers(self) -> NotOffered | None:
        """Why a loader without workers cannot get any; None if it can, or already has some."""
        if refusal := self.without_training_loader:
            return refusal
        if self.loaders[0].num_workers:  # its items come from copies of the dataset already
            return None
        if refusal := self.loads_on_device:
            return refusal
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

        The refusal keeps *domain* for the user who names the knob.
        """
        if not self.loop.length.bounded_by_steps:
            return domain
        return NotOffered(
            f"the program makes a fixed number of steps ({self.loop.length.where}): more samples "
            "in each would be more training, not an earlier end; name it in --tune or --set to try "
            "it",
            by_name=domain,
        )

    def without_optimizer(self, so: str) -> NotOffered | None:
        """Why knobs that need an optimizer cannot act; None if an optimizer steps.

        Args:
            so: The consequence for the knob, which completes the sentence; it begins with the
                comma or semicolon before it.
        """
        if not (place := self.loop.steps_by_hand):
            return None
        return NotOffered(f"the program updates its weights by hand ({place}){so}")
