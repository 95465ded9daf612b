"""Strategy: one way to train a model on several devices; the interface of the family.

A strategy acts on the program's own model and optimizers, in place: the program keeps its objects,
and what it saves of them is what it would have saved on one device.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from autotune.knobs.base import Here
from autotune.machine.hardware import Hardware
from autotune.program.config import Config, KnobValue
from autotune.program.profile import Profile

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer


LIGHTNING, TRANSFORMERS = "Lightning's Trainer", "Hugging Face's Trainer"
DDP, FABRIC, ACCELERATE = "DistributedDataParallel", "Lightning's Fabric", "Accelerate"
MAKE_DDP = frozenset({DDP, FABRIC, ACCELERATE, LIGHTNING, TRANSFORMERS})
"""What wraps a program's model in DDP by itself, where several ranks are started."""

BY_LOSS = {"LBFGS"}
UNFINISHED = "Expected to have finished reduction in the prior iteration"  # what DDP says


@dataclass(frozen=True)
class Site:
    """What a strategy works with, inside the program.

    Attributes:
        rank: Number of this process among those that train together.
        world_size: How many these are.
        options: Values of the strategies' own knobs, by their names.
        optimizers: All that the program has built.
        blocks: Tells the repeated blocks of a model.
        has_unused: Some parameters of the model got no gradient in the first step.
    """

    rank: int
    world_size: int
    options: Mapping[str, KnobValue]
    optimizers: Sequence[Optimizer]
    blocks: Callable[[nn.Module], Sequence[nn.Module]]
    has_unused: bool = False


class Strategy(ABC):
    """One strategy, one file. The first line of its docstring is what users read about it.

    Attributes:
        name: Its name as a value of the knob ``strategy``.
        launches_ranks: It runs the program in several processes, one per device, by torchrun.
        replaces_parameters: It puts parameters of its own in the place of the model's, so it acts
            before the first step; others act after it, when it is known what gets gradients.
    """

    name: ClassVar[str]
    launches_ranks: ClassVar[bool] = True
    replaces_parameters: ClassVar[bool] = False

    @property
    def summary(self) -> str:
        """What it does, in one line."""
        return (type(self).__doc__ or "").strip().splitlines()[0]

    def refusal(self, here: Here) -> str | None:
        """Return why it cannot act here, as a clause, or None."""
        return None

    def conflict(self, config: Config) -> str | None:
        """Return why it cannot go with the rest of the config, as a sentence, or None."""
        return None

    @abstractmethod
    def distribute(self, module: nn.Module, site: Site) -> nn.Module:
        """Distribute a model that the program trains; return what is called in its place."""

    def hand_over(self, optimizer: Optimizer, replaced: Mapping[Any, Any]) -> None:  # noqa: B027
        """Have an optimizer train the parameters that have come in the place of others."""

    def adopt(self, optimizer: Optimizer, site: Site) -> None:  # noqa: B027
        """Act on an optimizer, before its first step."""

    def sync_gradients(self, called: Any, *, enabled: bool) -> None:  # noqa: B027
        """Say whether gradients of the next backward pass are averaged over the ranks."""


def ranks_refusal(hardware: Hardware, profile: Profile) -> str | None:
    """Return why ranks cannot train together here, as a clause, or None."""
    families = {name for optimizer in profile.optimizers for name in optimizer.families}
    if found := families & BY_LOSS:
        return f"{', '.join(found)} decides by its loss, which is another one on each rank"
    if reason := loss_refusal(profile):
        return reason
    return shares_refusal(hardware, profile)


def loss_refusal(profile: Profile) -> str | None:
    """Return why what the program trains is not the mean of what ranks train, or None."""
    if profile.in_batch_loss:
        return f"the loss compares samples of one batch: {profile.in_batch_loss}"
    if profile.curved_loss:
        return f"the loss of all ranks is not the mean of theirs: {profile.curved_loss}"
    return None


def shares_refusal(hardware: Hardware, profile: Profile) -> str | None:
    """Return why a batch cannot be shared out among devices here, as a clause, or None."""
    if profile.starts_ranks or profile.distributes_itself:
        return _its_own_way(profile)
    if without := profile.without_optimizer("and what it does with several devices is not known"):
        return without.reason
    if profile.device not in {"cpu", "cuda"}:
        return f"the model computes on the {profile.device} device"
    if len(profile.loaders) > 1:
        return f"{len(profile.loaders)} loaders train together"
    if not devices_of(hardware, profile):
        return "no GPU's facts are known"
    return profile.depends_on_batch_before


def starts_them_itself(profile: Profile) -> str:
    """Return why other processes than the program's own cannot train, as a clause."""
    return f"the program starts the processes that train itself, by {profile.starts_ranks}"


def _its_own_way(profile: Profile) -> str:
    if profile.starts_ranks:
        return starts_them_itself(profile)
    return f"the program distributes itself ({profile.distributes_itself})"


def ddp_refusal(hardware: Hardware, profile: Profile) -> str | None:
    """Return why no options of DDP can act here, as a clause, or None."""
    return None if profile.distributes_itself in MAKE_DDP else in_place_refusal(hardware, profile)


def in_place_refusal(hardware: Hardware, profile: Profile) -> str | None:
    """Return why no options of ranks that autotune makes can act here, as a clause, or None."""
    if reason := ranks_refusal(hardware, profile):
        return reason
    is_one = devices_of(hardware, profile) == 1
    return f"there is one {'GPU' if profile.device == 'cuda' else 'core'}" if is_one else None


def devices_of(hardware: Hardware, profile: Profile) -> int:
    """Return the devices that ranks can have to themselves: GPUs, or cores."""
    return len(hardware.gpus) if profile.device == "cuda" else hardware.cpu_quota


def wrapped_by_ddp(module: nn.Module, site: Site) -> nn.Module:
    """Return DDP around a model, by the options of the ``ddp_`` knobs."""
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    options = site.options
    if options.get("sync_batchnorm"):
        module = nn.SyncBatchNorm.convert_sync_batchnorm(module)
    bucket_cap_mb = options.get("ddp_bucket_cap_mb")

    class Ddp(DistributedDataParallel):
        def forward(self, *inputs: Any, **kwargs: Any) -> Any:
            try:
                return super().forward(*inputs, **kwargs)  # type: ignore[no-untyped-call]
            except RuntimeError as error:
                if UNFINISHED not in str(error):
                    raise
                raise RuntimeError(
                    "some parameters get gradients in some steps only, which the ranks cannot "
                    "follow. Leave strategy and world_size out of the search, or set strategy to "
                    "single and world_size to 1 in best.yaml."
                ) from error

    return Ddp(
        module,
        init_sync=False,  # the ranks' models were made equal before the first step
        bucket_cap_mb=None if bucket_cap_mb is None else int(bucket_cap_mb),
        gradient_as_bucket_view=bool(options.get("ddp_gradient_as_bucket_view", False)),
        static_graph=bool(options.get("ddp_static_graph", False)),
        find_unused_parameters=site.has_unused,
    )
