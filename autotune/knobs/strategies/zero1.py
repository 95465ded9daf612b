"""The strategy of sharded optimizer state (ZeRO, stage 1).

torch's ZeroRedundancyOptimizer builds an optimizer of its own, by a class and its defaults. Here
the program's optimizer stays, of whatever class: its groups hold this rank's parameters alone while
it steps, by the public hooks around a step, and each rank sends out what it has updated.

Source: Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter
Models", section 5.1.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from autotune.knobs.base import Here
from autotune.knobs.strategies.base import Site, Strategy, ranks_refusal, wrapped_by_ddp

if TYPE_CHECKING:
    import torch
    from torch import nn
    from torch.optim import Optimizer


class Zero1(Strategy):
    """DDP, with each rank keeping the optimizer's state of its own part of the parameters."""

    name = "zero1"

    def refusal(self, here: Here) -> str | None:
        """Return why the data, or an optimizer's step, cannot be shared out."""
        if own := [
            optimizer.name for optimizer in here.profile.optimizers if optimizer.has_own_step
        ]:
            return (
                f"the step of {', '.join(own)} is none of torch's: it may look at all parameters "
                "together, as a norm over all does, and here each rank shows it a part (ddp shows "
                "it all)"
            )
        return ranks_refusal(here.hardware, here.profile)

    def distribute(self, module: nn.Module, site: Site) -> nn.Module:
        """Average gradients as ddp does."""
        return wrapped_by_ddp(module, site)

    def adopt(self, optimizer: Optimizer, site: Site) -> None:
        """Have each rank step its own part, and put the state together where it is saved."""
        _Part(optimizer, site).install()

    def sync_gradients(self, called: Any, *, enabled: bool) -> None:
        """Do what DDP's own ``no_sync()`` does."""
        called.require_backward_grad_sync = enabled


class _Part:
    """This rank's part of an optimizer.

    Parameters go to the rank that holds the fewest numbers so far, the largest first.
    """

    def __init__(self, optimizer: Optimizer, site: Site) -> None:
        self._rank = site.rank
        self._world_size = site.world_size
        loads = [0] * site.world_size
        self._owners: dict[Any, int] = {}
        every = [p for group in optimizer.param_groups for p in group["params"]]
        for parameter in sorted(every, key=lambda p: -p.numel()):  # stable: equal on all ranks
            owner = loads.index(min(loads))
            self._owners[parameter] = owner
            loads[owner] += parameter.numel()
        self._whole: list[list[Any]] | None = None
        self._optimizer = optimizer
        self._forget_others()

    def install(self) -> None:
        """Act around the optimizer's steps, and around its ``state_dict()``."""
        self._optimizer.register_step_pre_hook(self._narrow)
        self._optimizer.register_step_post_hook(self._spread)
        self._optimizer.register_state_dict_pre_hook(lambda _optimizer: self._gather())
        self._optimizer.register_state_dict_post_hook(lambda *_: self._forget_others())
        self._optimizer.register_load_state_dict_post_hook(lambda _optimizer: self._forget_others())

    def _narrow(self, optimizer: Optimizer, args: Any, kwargs: Any) -> Any:
        import torch

        closure = kwargs.pop("closure", args[1] if len(args) > 1 else None)
        self._whole = [group["params"] for group in optimizer.param_groups]
        if closure is not None:
            with torch.enable_grad():  # it clears and computes all gradients, so it comes first
                loss = closure()
            args = (args[0], lambda: loss)
        for group in optimizer.param_groups:
            group["params"] = [p for p in group["params"] if self._owner(p) == self._rank]
        return args, kwargs

    def _spread(self, optimizer: Optimizer, *_: Any) -> None:
        from torch import distributed

        whole, self._whole = self._whole, None
        if whole is None:  # it was adopted within its step, by a closure's first forward pass
            self._forget_others()
            return
        for group, parameters in zip(optimizer.param_groups, whole, strict=True):
            group["params"] = parameters
        sent = [
            distributed.broadcast(p.detach(), self._owner(p), async_op=True)
            for parameters in whole
            for p in parameters
        ]
        for work in sent:
            assert work is not None, "asynchronous work can be waited for"
            work.wait()

    def _owner(self, parameter: Any) -> int:
        return self._owners.get(parameter, 0)  # of groups that were added later: the first rank's

    def _gather(self) -> None:
        """Put together the state of all ranks, which all save, as the program does."""
        every = [p for group in self._optimizer.param_groups for p in group["params"]]
        own = {
            n: self._optimizer.state[p] for n, p in enumerate(every) if p in self._optimizer.state
        }
        for rank in range(self._world_size):
            if rank == self._rank:
                _tell(own, rank)
                continue
            for number, state in _told(rank, lambda n: every[n].device).items():
                self._optimizer.state[every[number]] = _on_device(state, every[number])

    def _forget_others(self) -> None:
        for parameter in list(self._optimizer.state):
            if self._owner(parameter) != self._rank:
                del self._optimizer.state[parameter]


def _on_device(state: dict[str, Any], parameter: Any) -> dict[str, Any]:
    """The state with its large tensors where the parameter is; step counts stay as they were."""
    return {
        key: value.to(parameter.device)
        if getattr(value, "shape", None) == parameter.shape
        else value
        for key, value in state.items()
    }


def _tell(states: dict[int, dict[str, Any]], rank: int) -> None:
    """Send a rank's states to all others: their make as JSON, then tensor by tensor."""
    import torch
    from torch import distributed

    tensors: list[torch.Tensor] = []
    made = {number: _made(state, tensors) for number, state in states.items()}
    text = torch.frombuffer(bytearray(json.dumps(made).encode()), dtype=torch.uint8)
    distributed.broadcast(torch.tensor([len(text)]), rank)
    distributed.broadcast(text, rank)
    for tensor in tensors:
        _send(tensor, rank)


def _told(rank: int, device_of: Callable[[int], torch.device]) -> dict[int, dict[str, Any]]:
    """Return the states that another rank sends.

    Args:
        rank: It.
        device_of: Gives the device of a parameter, by its number.
    """
    import torch
    from torch import distributed

    length = torch.zeros(1, dtype=torch.int64)
    distributed.broadcast(length, rank)
    text = torch.empty(int(length), dtype=torch.uint8)
    distributed.broadcast(text, rank)

    def received(number: int, dtype: str, shape: list[int], kind: str) -> torch.Tensor:
        device = torch.device("cpu") if kind == "cpu" else device_of(number)
        tensor = torch.empty(shape, dtype=getattr(torch, dtype), device=device)
        _send(tensor, rank)
        return tensor

    made = {int(number): state for number, state in json.loads(text.numpy().tobytes()).items()}
    return {n: _remade(state, partial(received, n)) for n, state in made.items()}


def _made(value: Any, tensors: list[torch.Tensor]) -> Any:
    """Return JSON that says how a state is made; its tensors are listed in their order."""
    import torch

    if value is None or isinstance(value, bool | int | float | str):
        return value
    if type(value) is torch.Tensor and value.layout is torch.strided:
        tensors.append(value)
        dtype = str(value.dtype).removeprefix("torch.")
        return {"tensor": [dtype, list(value.shape), value.device.type]}
    if type(value) in {list, tuple}:
        return {type(value).__name__: [_made(item, tensors) for item in value]}
    if type(value) is dict:
        return {"dict": [[_made(k, tensors), _made(v, tensors)] for k, v in value.items()]}
    raise TypeError(
        f"the optimizer keeps a state of type '{type(value).__qualname__}', which zero1 cannot put "
        "together. Leave strategy and world_size out of the search."
    )


def _remade(made: Any, received: Callable[..., torch.Tensor]) -> Any:
    """Return the value that was made so; tensors are received in their order."""
    if not isinstance(made, dict):
        return made
    (kind, parts), *_ = made.items()
    match kind:
        case "tensor":
            return received(*parts)
        case "dict":
            return {_remade(k, received): _remade(v, received) for k, v in parts}
        case _:
            items = [_remade(item, received) for item in parts]
            return tuple(items) if kind == "tuple" else items


def _send(tensor: torch.Tensor, rank: int) -> None:
    """Give all ranks the numbers of one, as bytes: not every backend sends every type."""
    import torch
    from torch import distributed

    if tensor.numel():
        flat = tensor.detach().contiguous().view(-1)
        distributed.broadcast(flat.view(torch.uint8), rank)
