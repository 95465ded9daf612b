"""The interface of all strategies, those that need no code besides it, and why some are refused.

A strategy trains a model on several devices. It acts on the program's own model and optimizers, in
place: the program keeps its objects, and its checkpoints hold what they would hold on one device.

Refusals are pure functions of hardware and profile and run in the parent process, which must not
import torch. So torch is imported inside the functions that run in the program.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from inspect import signature
from typing import TYPE_CHECKING, Any, ClassVar

from autotune.knobs.base import Here
from autotune.machine.hardware import Hardware
from autotune.program.config import Config, KnobValue
from autotune.program.profile import SEVERAL_LOADERS, Profile

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


LIGHTNING, TRANSFORMERS = "Lightning's Trainer", "Hugging Face's Trainer"
DDP, FABRIC, ACCELERATE = "DistributedDataParallel", "Lightning's Fabric", "Accelerate"
MAKE_DDP = frozenset({DDP, FABRIC, ACCELERATE, LIGHTNING, TRANSFORMERS})
"""Classes and libraries that wrap the program's model in DDP where several ranks are started."""

# Optimizers that decide by the value of the loss, which differs between ranks.
STREAM = "the data are a stream (IterableDataset), which ranks cannot share out"
BY_LOSS = {"LBFGS"}


@dataclass(frozen=True)
class Site:
    """What a strategy works with inside the program.

    Attributes:
        rank: Number of this process among the ranks, from 0.
        world_size: Number of ranks.
        options: Values of the strategies' knobs, by their names.
        optimizers: All optimizers that the program has built so far.
        blocks: Returns the repeated blocks of a model.
        has_unused: On some rank, parameters of the model got no gradient in the first step.
    """

    rank: int
    world_size: int
    options: Mapping[str, KnobValue]
    optimizers: Sequence[Optimizer]
    blocks: Callable[[nn.Module], Sequence[nn.Module]]
    has_unused: bool = False


class Strategy(ABC):
    """One way to train a model on several devices; each is a subclass in its own file.

    ``inside.seams.distribution`` calls the methods that take models or optimizers, on the thread
    that trains. ``refusal()`` and ``conflict()`` are called in the parent process.

    Attributes:
        name: With it a value of the knob ``devices`` begins.
        launches_ranks: It runs the program in several processes, one per device.
    """

    name: ClassVar[str]
    launches_ranks: ClassVar[bool] = False

    def refusal(self, here: Here) -> str | None:
        """Return why the strategy does not work for this program on this machine, or None.

        The reason is a clause: no capital, no full stop.
        """
        return None

    def conflict(self, config: Config) -> str | None:
        """Return why the strategy cannot be combined with the rest of the config, or None.

        The reason is a sentence.
        """
        return None

    @abstractmethod
    def distribute(self, module: nn.Module, site: Site) -> nn.Module:
        """Distribute a model that the program trains, and return the module to call in its place.

        The returned module may be *module* itself, if that was changed in place.
        """


class RankStrategy(Strategy):
    """A strategy under which each of several ranks trains the model on its share of each batch.

    The ranks' models are equal before the first step, and ``inside.seams.distribution`` averages
    gradients until the strategy does. What is here does so with DDP.

    Attributes:
        replaces_parameters: It replaces the model's parameters by others, so it must act at the
            model's first call. Other strategies act after the first step, when it is known which
            parameters get gradients.
    """

    launches_ranks = True
    replaces_parameters: ClassVar[bool] = False

    def refusal(self, here: Here) -> str | None:
        return ranks_refusal(here.hardware, here.profile)

    def distribute(self, module: nn.Module, site: Site) -> nn.Module:
        from torch import nn
        from torch.nn.parallel import DistributedDataParallel

        options = site.options
        # The ranks' models were made equal before the first step; torch 2.6 does it again
        takes_init_sync = "init_sync" in signature(DistributedDataParallel).parameters
        init_sync: dict[str, Any] = {"init_sync": False} if takes_init_sync else {}
        if options.get("sync_batchnorm"):
            module = nn.SyncBatchNorm.convert_sync_batchnorm(module)
        bucket_cap_mb = options.get("ddp_bucket_cap_mb")
        return DistributedDataParallel(
            module,
            **init_sync,
            bucket_cap_mb=None if bucket_cap_mb is None else int(bucket_cap_mb),
            gradient_as_bucket_view=bool(options.get("ddp_gradient_as_bucket_view", False)),
            static_graph=bool(options.get("ddp_static_graph", False)),
            # True costs a walk through the graph in each step (PyTorch documentation).
            find_unused_parameters=site.has_unused,
        )

    def sync_gradients(self, called: Any, *, enabled: bool) -> None:
        """Set whether the next backward pass averages gradients over the ranks.

        It is called before each forward pass with gradients, with the module that ``distribute()``
        returned. Accumulation turns averaging off for all but the last batch of a step. DDP's
        attribute is set that its ``no_sync()`` sets: the context manager cannot be used, because
        forward and backward happen in the program's code.
        """
        called.require_backward_grad_sync = enabled

    def hand_over(self, optimizer: Optimizer, replaced: Mapping[Any, Any]) -> None:
        """Make an optimizer train the new parameter of each parameter that was replaced.

        It is called for optimizers that are built, or get parameters, after the model was
        distributed by a strategy that replaces parameters.
        """

    def adopt(self, optimizer: Optimizer, site: Site) -> None:
        """Prepare an optimizer for training under the strategy.

        It is called once per optimizer: when a model that the optimizers train is first called, and
        later for optimizers that are built after that.
        """


def ranks_refusal(hardware: Hardware, profile: Profile) -> str | None:
    """Return why several ranks cannot train this program, as a clause, or None."""
    families = {name for optimizer in profile.optimizers for name in optimizer.families}
    if found := families & BY_LOSS:
        return f"{', '.join(found)} decides by its loss, which differs between ranks"
    if any(loader.iterable for loader in profile.loaders):
        return STREAM
    return shares_refusal(hardware, profile)


def shares_refusal(hardware: Hardware, profile: Profile) -> str | None:
    """Return why a batch cannot be divided among devices, as a clause, or None."""
    if profile.ranks.started_by:
        return starts_them_itself(profile)
    if profile.ranks.distributed_by:
        return f"the program distributes itself ({profile.ranks.distributed_by})"
    if without := profile.without_optimizer("; how it behaves on several devices is not known"):
        return without.reason
    if profile.device not in {"cpu", "cuda"}:
        return f"the model computes on the {profile.device} device"
    if len(profile.loaders) > 1:
        return SEVERAL_LOADERS.format(len(profile.loaders))
    return None if devices_of(hardware, profile) else "the properties of the GPUs are not known"


def starts_them_itself(profile: Profile) -> str:
    """Return, as a clause, that the program starts its ranks itself, so that autotune cannot."""
    return f"the program starts the processes that train itself, by {profile.ranks.started_by}"


def ddp_refusal(hardware: Hardware, profile: Profile) -> str | None:
    """Return why DDP's options have no effect here, as a clause, or None.

    They also act on the DDP of programs and trainers that make one for several ranks.
    """
    return None if profile.ranks.distributed_by in MAKE_DDP else in_place_refusal(hardware, profile)


def in_place_refusal(hardware: Hardware, profile: Profile) -> str | None:
    """Return why options of autotune's own ranks have no effect here, as a clause, or None.

    A single device is a reason, too: one rank has nothing to communicate.
    """
    if reason := ranks_refusal(hardware, profile):
        return reason
    is_one = devices_of(hardware, profile) == 1
    return f"there is one {'GPU' if profile.device == 'cuda' else 'core'}" if is_one else None


def devices_of(hardware: Hardware, profile: Profile) -> int:
    """Return the number of devices that can each serve one rank; 0 if no GPU could be read."""
    return len(hardware.gpus) if profile.device == "cuda" else hardware.cpu_quota


class Single(Strategy):
    """One process on one device, where an ``nn.DataParallel`` of the program computes as well."""

    name = "single"

    def distribute(self, module: nn.Module, site: Site) -> nn.Module:
        return module


class Own(Single):
    """The program's own distribution: autotune starts its ranks and leaves the rest to it.

    Examples are programs that call ``torch.distributed`` or DDP, and trainers of libraries. The
    number of ranks can still be searched, and so can DDP's options if the program uses DDP.
    """

    name = "own"
    launches_ranks = True

    def refusal(self, here: Here) -> str | None:
        is_own = here.profile.ranks.distributed_by
        return None if is_own else "the program does not distribute itself"


class DataParallel(Strategy):
    """nn.DataParallel: one process copies the model to all GPUs in each step; ddp is often faster.

    Each batch is split among the GPUs, and outputs and gradients are gathered on the first one. One
    Python process drives all GPUs, which limits the speed. A program that does so is left as it is.
    """

    name = "data_parallel"

    def refusal(self, here: Here) -> str | None:
        if here.profile.is_data_parallel:
            return None
        if here.profile.device != "cuda" or len(here.hardware.gpus) < 2:
            return "nn.DataParallel needs two GPUs"
        return shares_refusal(here.hardware, here.profile)

    def distribute(self, module: nn.Module, site: Site) -> nn.Module:
        from torch import nn

        return nn.DataParallel(module)


class Ddp(RankStrategy):
    """DistributedDataParallel: each rank trains a copy of the model on its share of each batch.

    Gradients are averaged over the ranks during the backward pass. Every rank needs memory for the
    whole model, its gradients and its optimizer state.
    """

    name = "ddp"
