"""The strategy ``zero1``: DDP with sharded optimizer state (ZeRO, stage 1).

PyTorch's ZeroRedundancyOptimizer builds a new optimizer from a class and its defaults. Here the
program's optimizer object stays, whatever its class. Hooks around its step reduce its groups to
this rank's parameters, and afterwards each rank broadcasts the parameters that it updated.

Source: Rajbhandari et al. 2020, "ZeRO: Memory Optimizations Toward Training Trillion Parameter
Models", section 5.1.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from autotune.knobs.base import Here
from autotune.knobs.strategies.base import RankStrategy, Site

if TYPE_CHECKING:
    import torch
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
        if own := [
            optimizer.name for optimizer in here.profile.optimizers if optimizer.has_own_step
        ]:
            return (
                f"the step of {', '.join(own)} is not one of torch's: it may need all parameters "
                "at once, for example for a norm, and zero1 shows it only each rank's part (ddp "
                "shows it all)"
            )
        return super().refusal(here)

    def adopt(self, optimizer: Optimizer, site: Site) -> None:
        """Divide the optimizer's parameters among the ranks; gather its state when it is saved."""
        _Part(optimizer, site).install()


class _Part:
    """This rank's part of one optimizer.

    ``Zero1.adopt()`` makes one per optimizer, in the program's process; the optimizer's hooks call
    it, on the thread that trains. The largest parameters are assigned first, each to the rank that
    has the fewest elements so far.
    """

    def __init__(self, optimizer: Optimizer, site: Site) -> None:
        self._rank = site.rank
        self._world_size = site.world_size
        loads = [0] * site.world_size
        self._owners: dict[Any, int] = {}
        # Sorting is stable, so all ranks assign the parameters alike without talking to each other.
        every = [p for group in optimizer.param_groups for p in group["params"]]
        for parameter in sorted(every, key=lambda p: -p.numel()):
            # On a tie the lowest rank takes it, on every rank alike.
            owner = loads.index(min(loads))
            self._owners[parameter] = owner
            loads[owner] += parameter.numel()
        self._whole: list[list[Any]] | None = None
        self._optimizer = optimizer
        self._forget_others()

    def install(self) -> None:
        """Register hooks around the optimizer's steps and around saving and loading its state.

        They are PyTorch's public hooks, so any optimizer class works.
        """
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
            # The closure clears and computes the gradients of all parameters, so it runs before the
            # groups are narrowed; the optimizer then gets its result.
            with torch.enable_grad():
                loss = closure()
            args = (args[0], lambda: loss)
        for group in optimizer.param_groups:
            group["params"] = [p for p in group["params"] if self._owner(p) == self._rank]
        return args, kwargs

    def _spread(self, optimizer: Optimizer, *_: Any) -> None:
        from torch import distributed

        whole, self._whole = self._whole, None
        if whole is None:  # adopted in the middle of this step, by the closure's first forward pass
            self._forget_others()
            return
        for group, parameters in zip(optimizer.param_groups, whole, strict=True):
            group["params"] = parameters
        sent = [
            # Every parameter in the same order on every rank, so that the broadcasts match.
            distributed.broadcast(p.detach(), self._owner(p), async_op=True)
            for parameters in whole
            for p in parameters
        ]
        for work in sent:
            assert work is not None, "asynchronous work can be waited for"
            work.wait()

    def _owner(self, parameter: Any) -> int:
        # Parameters of groups that were added later belong to the first rank.
        return self._owners.get(parameter, 0)

    def _gather(self) -> None:
        """Collect the state of all ranks, before ``state_dict()`` is read.

        All ranks must call it, and they do, because every rank runs the program's code that saves.
        """
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
    """Return the state with its parameter-sized tensors on the parameter's device.

    Other values, such as step counts, stay where they are.
    """
    return {
        key: value.to(parameter.device)
        if getattr(value, "shape", None) == parameter.shape
        else value
        for key, value in state.items()
    }


def _tell(states: dict[int, dict[str, Any]], rank: int) -> None:
    """Broadcast a rank's states to the others: the structure as JSON, then tensor by tensor.

    ``all_gather_object`` is not used, because it unpickles whatever it receives.
    """
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
    """Return the states that another rank broadcasts, by parameter.

    Parameters are numbered in the order of the optimizer's groups, as in its ``state_dict()``.

    Args:
        rank: The sending rank.
        device_of: Returns the device of a parameter, given its number.
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
    """Return the structure of a state as JSON, and append its tensors to *tensors*.

    Raises:
        TypeError: The state contains a value that is not a plain tensor, number, text, list, tuple
            or dict.
    """
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
        "together. Leave devices out of the search."
    )


def _remade(made: Any, received: Callable[..., torch.Tensor]) -> Any:
    """Return the value whose structure is *made*; call ``received`` for each tensor, in order.

    The order is that in which ``_made()`` listed the tensors.
    """
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
    """Broadcast a tensor's values from one rank to all, as bytes.

    Some backends cannot send every dtype. An empty tensor is not sent.
    """
    import torch
    from torch import distributed

    if tensor.numel():
        flat = tensor.detach().contiguous().view(-1)
        distributed.broadcast(flat.view(torch.uint8), rank)
