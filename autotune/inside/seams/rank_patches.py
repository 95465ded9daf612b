"""What torch, numpy and Python do otherwise where ranks train one model, or one device does.

- Random numbers are equal during set-up, when a script may split its data or number its labels.
  From the first batch on, each rank draws other numbers for dropout, augmentation, and batches that
  are drawn without a loader; the first rank keeps those that the program would draw as one process.
- Gradients are clipped by the norm that the model would have on one device. A strategy that shards
  a model replaces its parameters; a program may clip parameters that it took before, and torch
  cannot compute one norm over sharded and plain parameters together.
- ``ReduceLROnPlateau`` follows the mean of the ranks' metrics. Each would otherwise follow its own
  share of the data, and choose another rate.
- ``nn.DataParallel`` computes on its first device alone, which is a rank's own. The program keeps
  the object, so that the keys of its checkpoints stay.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any
from weakref import ref

import numpy
import torch
from torch import distributed, nn
from torch.nn import utils
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import ReduceLROnPlateau

from autotune.inside.data.nested import first_tensor, map_tensors
from autotune.inside.hubs.patches import Patches, Seam
from autotune.inside.ranks.dtensor import is_sharded, whole
from autotune.inside.ranks.group import Group

Call = Callable[..., Any]


class RankPatches(Seam):
    """Has ranks draw, clip and follow metrics as one program.

    The replaced functions run on the thread on which the program calls them. All ranks must call
    ``ReduceLROnPlateau.step``, because it communicates.

    Attributes:
        is_agreed: Whether all ranks begin with the same seeds.
    """

    def __init__(self, group: Group) -> None:
        self.is_agreed = False
        self._group = group
        self._differs = False
        self._replaced: dict[int, tuple[ref[nn.Parameter], nn.Parameter]] = {}
        self._patches = Patches()

    def install(self) -> None:
        """Replace the functions that clip, and ``ReduceLROnPlateau.step``."""
        self._patches.wrap(utils, "clip_grad_norm_", self._clip_by_norm)
        self._patches.wrap(utils, "clip_grad_value_", self._clip_by_value)
        self._patches.wrap(ReduceLROnPlateau, "step", self._step)

    def use_first_device(self) -> None:
        """Have each ``nn.DataParallel`` call its model on its first device."""
        self._patches.wrap(nn.DataParallel, "forward", _on_first_device)

    def pass_to_ddp(self, options: Mapping[str, Any]) -> None:
        """Pass options to each DDP that the program or its trainer makes."""

        def init(original: Call, *args: Any, **kwargs: Any) -> None:
            original(*args, **{**kwargs, **options})

        self._patches.wrap(DistributedDataParallel, "__init__", init)

    def agree(self) -> None:
        """Seed all ranks with one random number of the first, unless they begin alike anyway."""
        if self.is_agreed:
            return
        if self._group.is_first:
            self._group.store.set("seed", random.SystemRandom().randrange(1 << 32))
        seed: int = self._group.store.get("seed")
        random.seed(seed)
        numpy.random.seed(seed)  # noqa: NPY002 - what programs draw from
        torch.manual_seed(seed)

    def differ(self) -> None:
        """Make this rank draw other random numbers than the others from here on.

        ``torch.manual_seed`` adds the rank to later seeds of the program's, too. Only the first
        call acts, and the first rank stays as it is.
        """
        rank = self._group.rank
        if self._differs or rank == 0:
            return
        self._differs = True
        torch.manual_seed(torch.initial_seed() + rank)
        random.seed(f"{random.random()} on rank {rank}")
        drawn = int(numpy.random.randint(1 << 31))  # noqa: NPY002 - what programs draw from
        numpy.random.seed((drawn + rank) % (1 << 32))  # noqa: NPY002

        def manual_seed(original: Call, seed: int) -> Any:
            return original(int(seed) + rank)

        self._patches.wrap(torch, "manual_seed", manual_seed)

    def replaced(
        self, before: Mapping[str, nn.Parameter], after: Mapping[str, nn.Parameter]
    ) -> None:
        """Note which parameters were replaced by which."""
        for name, old in before.items():
            # An id may be used again once its object is gone, so the reference proves whose it is.
            self._replaced[id(old)] = ref(old), after[name]

    def replacements(self, parameters: Iterable[nn.Parameter]) -> dict[nn.Parameter, nn.Parameter]:
        """Return the new parameter for each of these that was replaced; others are left out."""
        present = {p: self._replacement(p) for p in parameters}
        return {old: new for old, new in present.items() if new is not old}

    def _replacement(self, parameter: Any) -> Any:
        old, new = self._replaced.get(id(parameter), (None, None))
        return new if old is not None and old() is parameter else parameter

    def _present(self, parameters: Any) -> list[Any]:
        given = [parameters] if isinstance(parameters, torch.Tensor) else parameters
        return [self._replacement(parameter) for parameter in given]

    def _clip_by_norm(
        self, clip: Call, parameters: Any, max_norm: float, *args: Any, **kwargs: Any
    ) -> Any:
        """Clip, and return the norm over all ranks as a plain tensor."""
        present = self._present(parameters)
        shards = [p for p in present if is_sharded(p)]
        others = [p for p in present if not is_sharded(p)]
        if shards and others:  # torch cannot take one norm of both
            return _clip_both(clip, shards, others, max_norm, *args, **kwargs)
        return whole(clip(present, max_norm, *args, **kwargs))

    def _clip_by_value(self, clip: Call, parameters: Any, *args: Any, **kwargs: Any) -> None:
        clip(self._present(parameters), *args, **kwargs)

    def _step(self, step: Call, scheduler: Any, metrics: Any, *args: Any, **kwargs: Any) -> None:
        if distributed.is_initialized():
            own = torch.tensor([float(metrics)], dtype=torch.float64)
            every = [torch.empty_like(own) for _ in range(self._group.world_size)]
            distributed.all_gather(every, own)
            metrics = sum(float(metric) for metric in every) / len(every)
        step(scheduler, metrics, *args, **kwargs)


def _on_first_device(
    forward: Call, module: nn.DataParallel[nn.Module], *inputs: Any, **kwargs: Any
) -> Any:
    """Return what the model makes of a batch as a whole.

    A scalar, such as a loss, comes once for each replica, as when theirs are gathered: a script may
    add them up. The output stays on the first device, whatever the program chose.
    """
    devices = module.device_ids
    if len(devices) < 2:
        return forward(module, *inputs, **kwargs)
    module.device_ids = devices[:1]
    try:
        output = forward(module, *inputs, **kwargs)
    finally:
        module.device_ids = devices
    first = first_tensor((inputs, kwargs))  # a small batch is divided among fewer
    shares = len(devices) if first is None or not first.dim() else len(first.chunk(len(devices)))
    return map_tensors(lambda t: t if t.dim() else t.expand(shares), output)


def _clip_both(
    clip: Callable[..., Any],
    shards: Sequence[Any],
    others: Sequence[Any],
    max_norm: float,
    norm_type: float = 2.0,
    **kwargs: Any,
) -> torch.Tensor:
    # An infinite limit clips nothing: these calls only compute the norms.
    norms = [whole(clip(part, math.inf, norm_type, **kwargs)) for part in (shards, others)]
    norm: torch.Tensor = torch.linalg.vector_norm(torch.stack(norms), norm_type)
    utils.clip_grads_with_norm_(shards, max_norm, norm)
    utils.clip_grads_with_norm_(others, max_norm, norm)
    return norm
