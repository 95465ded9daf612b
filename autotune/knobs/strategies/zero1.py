"""The strategy ``zero1``: DDP with sharded optimizer state (ZeRO, stage 1).

PyTorch's ZeroRedundancyOptimizer builds a new optimizer from a class and its defaults. Here the
program's optimizer object stays, whatever its class, because the program and its schedulers hold
it. Hooks around its step reduce its groups to this rank's parameters, and afterwards each rank
broadcasts the parameters that it updated.

Source: Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter
Models", section 5.1.
"""

from __future__ import annotations

import io
from inspect import unwrap
from typing import TYPE_CHECKING, Any

from autotune.knobs.base import Here
from autotune.knobs.strategies.base import RankStrategy, Site

if TYPE_CHECKING:
    from torch.optim import Optimizer


class Zero1(RankStrategy):
    """DDP in which each rank keeps the optimizer state of one part of the parameters.

    It lowers the memory for optimizer state, which for Adam is twice that of the weights. Each step
    ends with a broadcast of the updated parameters.
    """

    name = "zero1"

    def refusal(self, here: Here) -> str | None:
        """Return why ranks cannot train the program, or an optimizer's step cannot be divided.

        A step that is not PyTorch's may compute over all parameters at once, for example a norm. It
        would update differently if it saw only a part of them.
        """
        if own := [o.name for o in here.profile.optimizers if o.has_own_step]:
            return (
                f"the step of {', '.join(own)} is not one of torch's: it may need all parameters "
                "at once, for example for a norm, and zero1 shows it only each rank's part (ddp "
                "shows it all)"
            )
        return super().refusal(here)

    def adopt(self, optimizer: Optimizer, site: Site) -> None:
        part = _Part(optimizer, site)
        optimizer.register_step_pre_hook(part.narrow)
        optimizer.register_step_post_hook(part.spread)
        optimizer.register_state_dict_pre_hook(lambda _optimizer: part.gather())
        optimizer.register_state_dict_post_hook(lambda *_: part.forget_others())
        optimizer.register_load_state_dict_post_hook(lambda _optimizer: part.forget_others())


class _Part:
    """This rank's part of one optimizer; the optimizer's hooks call it.

    The largest parameters are assigned first, each to the rank that has the fewest elements so far;
    those of groups that are added later belong to the first rank.
    """

    def __init__(self, optimizer: Optimizer, site: Site) -> None:
        self._optimizer = optimizer
        self._rank = site.rank
        self._owners: dict[Any, int] = {}
        self._whole: list[list[Any]] | None = None
        loads = [0] * site.world_size
        # Sorting is stable, so all ranks assign the parameters alike without talking to each other.
        for parameter in sorted(self._every(), key=lambda p: -p.numel()):
            owner = loads.index(min(loads))
            self._owners[parameter] = owner
            loads[owner] += parameter.numel()
        self.forget_others()

    def narrow(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        """Reduce the groups to this rank's parameters, before a step."""
        import torch

        closure = kwargs.pop("closure", args[1] if len(args) > 1 else None)
        self._whole = [group["params"] for group in optimizer.param_groups]
        if closure is not None:
            # The closure clears and computes the gradients of all parameters, so it runs before the
            # groups are narrowed; the optimizer then gets its result.
            with torch.enable_grad():
                loss = closure()
            args = (args[0], lambda: loss)
        for group in optimizer.param_groups:
            group["params"] = [p for p in group["params"] if self._owners.get(p, 0) == self._rank]
        return args, kwargs

    def spread(self, optimizer: Optimizer, *_: Any) -> None:
        """Put the groups back, and send this rank's parameters to all, after a step."""
        from torch import distributed

        whole, self._whole = self._whole, None
        if whole is None:  # adopted in the middle of this step, by the closure's first forward pass
            self.forget_others()
            return
        for group, parameters in zip(optimizer.param_groups, whole, strict=True):
            group["params"] = parameters
        # Every parameter in the same order on every rank, so that the broadcasts match.
        sent = [
            distributed.broadcast(p.detach(), self._owners.get(p, 0), async_op=True)
            for p in self._every()
        ]
        for work in sent:
            assert work is not None, "asynchronous work can be waited for"
            work.wait()

    def gather(self) -> None:
        """Collect the state of all ranks, before ``state_dict()`` is read.

        All ranks must call it, and they do, because every rank runs the program's code that saves.

        Raises:
            RuntimeError: The state holds an object that torch does not load with ``weights_only``.
        """
        every, state = self._every(), self._optimizer.state
        own = {number: state[p] for number, p in enumerate(every) if p in state}
        for rank in range(max(self._owners.values(), default=0) + 1):
            for number, theirs in _told(own if rank == self._rank else None, rank).items():
                shape, device = every[number].shape, every[number].device
                state[every[number]] = {
                    key: v.to(device) if getattr(v, "shape", None) == shape else v
                    for key, v in theirs.items()
                }

    def forget_others(self) -> None:
        """Drop the state of other ranks' parameters."""
        for parameter in list(self._optimizer.state):
            if self._owners.get(parameter, 0) != self._rank:
                del self._optimizer.state[parameter]

    def _every(self) -> list[Any]:
        return [p for group in self._optimizer.param_groups for p in group["params"]]


def _told(own: dict[int, dict[str, Any]] | None, rank: int) -> dict[int, dict[str, Any]]:
    """Return the states that a rank broadcasts; nothing on that rank itself, which has them.

    ``broadcast_object_list`` is not used, because it unpickles whatever it receives.

    Args:
        own: The states, on the rank that sends them; None on the others.
        rank: The rank that sends.
    """
    import torch
    from torch import distributed

    # unwrapped, because the program has saved nothing here
    save, load = unwrap(torch.save), unwrap(torch.load)
    buffer = io.BytesIO()
    save(own, buffer)
    sent = torch.frombuffer(bytearray(buffer.getvalue()), dtype=torch.uint8)
    length = torch.tensor([len(sent)])
    distributed.broadcast(length, rank)
    if own is not None:
        distributed.broadcast(sent, rank)
        return {}
    received = torch.empty(int(length), dtype=torch.uint8)
    distributed.broadcast(received, rank)
    states: dict[int, dict[str, Any]] = load(
        io.BytesIO(received.numpy().tobytes()), map_location="cpu", weights_only=True
    )
    return states
