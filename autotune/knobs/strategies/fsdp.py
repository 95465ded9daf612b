"""The strategy ``fsdp``: fully sharded data parallelism (PyTorch's FSDP2, ``fully_shard``).

``fully_shard`` replaces the model's parameters by sharded ones (DTensors). The program's optimizers
are switched to the new parameters by name. State dicts of the model and the optimizers contain
whole, plain tensors, so checkpoints are those of a single device.
"""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from autotune.knobs.base import Here
from autotune.knobs.strategies.base import RankStrategy, Site
from autotune.program.config import Config
from autotune.program.environment import release_of

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

# In torch 2.6, torch.cpu.Stream lacks the record_event() that fully_shard calls
OLDEST_ON_CPU = "2.7"


class Fsdp(RankStrategy):
    """FSDP2: ranks share weights, gradients and optimizer state, and gather weights block by block.

    It needs the least memory per rank and the most communication. Under it the model's parameters
    are other objects than before the first step. A script that goes on with those trains something
    else, which the comparison before a recommendation finds.
    """

    name = "fsdp"
    replaces_parameters = True

    def __init__(self) -> None:
        self._parts: list[weakref.ref[Any]] = []  # FSDP's modules, which may stay gathered

    def refusal(self, here: Here) -> str | None:
        if here.profile.model.channels_last:
            return "the program lays weights out as channels_last, which fsdp cannot shard"
        torch = here.hardware.versions.get("torch", OLDEST_ON_CPU)
        if here.profile.device == "cpu" and release_of(torch) < release_of(OLDEST_ON_CPU):
            return f"fsdp on the CPU needs torch {OLDEST_ON_CPU} or later, and this is {torch}"
        return super().refusal(here)

    def conflict(self, config: Config) -> str | None:
        # Shards are cut from flat memory, which has no image layout
        if config.get("memory_format") == "channels_last":
            return "fsdp cannot shard weights in channels_last layout."
        return None

    def distribute(self, module: nn.Module, site: Site) -> nn.Module:
        """Shard the model, by blocks or whole, and give the new parameters to the optimizers.

        Hooks keep state dicts whole and make the sharded parameters visible after an evaluation.
        """
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.fsdp import FSDPModule, fully_shard

        before = dict(module.named_parameters())
        device = next(iter(before.values())).device.type
        options = {"mesh": init_device_mesh(device, (site.world_size,)), **_options(site)}
        if site.options.get("fsdp_shard", "blocks") == "blocks":
            # fully_shard must be applied to inner modules before the module that contains them.
            for block in site.blocks(module):
                fully_shard(block, **options)
        fully_shard(module, **options)
        parts = [part for part in module.modules() if isinstance(part, FSDPModule)]
        self._parts += map(weakref.ref, parts)
        after = dict(module.named_parameters())
        replaced = {before[name]: after[name] for name in before}
        for optimizer in site.optimizers:
            self.hand_over(optimizer, replaced)
        for part in module.modules():
            part.register_state_dict_post_hook(_whole_weights)
            part.register_load_state_dict_pre_hook(_shard_weights)
        module.register_forward_hook(partial(_let_go, list(after.values())))
        return module

    def hand_over(self, optimizer: Optimizer, replaced: Mapping[Any, Any]) -> None:
        """Make an optimizer train the new parameters.

        State that it has for the old parameters, for example from a checkpoint, is sharded and
        kept.
        """
        for group in optimizer.param_groups:
            kept = [p for p in group["params"] if p not in replaced]
            if kept and len(kept) < len(group["params"]):  # foreach and fused take no mix
                group.update({name: False for name in ("foreach", "fused") if name in group})
            group["params"] = [replaced.get(p, p) for p in group["params"]]
        for old in [p for p in optimizer.state if p in replaced]:
            new = replaced[old]
            state = optimizer.state.pop(old)
            optimizer.state[new] = {key: _sharded_as(new, value) for key, value in state.items()}

    def adopt(self, optimizer: Optimizer, site: Site) -> None:
        optimizer.register_state_dict_post_hook(_whole_state)
        optimizer.register_load_state_dict_post_hook(_shard_state)
        optimizer.register_step_post_hook(lambda *_: self._let_go_of_old_weights())
        _shard_state(optimizer)

    def _let_go_of_old_weights(self) -> None:
        """Drop gathered weights after an optimizer's step.

        A module that was called without a backward pass keeps its weights gathered, and would go on
        with the values from before the step.
        """
        for part in filter(None, (part() for part in self._parts)):
            part.reshard()

    def sync_gradients(self, called: Any, *, enabled: bool) -> None:
        """Set whether FSDP averages and shards gradients; otherwise each rank keeps them whole."""
        # FSDP then keeps whole gradients, which is why accumulation needs more memory under fsdp.
        called.set_requires_gradient_sync(enabled)


def _let_go(trained: Sequence[nn.Parameter], module: nn.Module, *_: Any) -> None:
    """Make a model's sharded parameters visible again after a call without a backward pass.

    After an evaluation, FSDP would leave the gathered parameters in place, but the program's next
    access must reach the sharded ones, which are trained. The same holds after a call between the
    backward pass and the step, because the gradients belong to the sharded parameters.
    """
    import torch
    from torch.distributed.fsdp import FSDPModule

    if not torch.is_grad_enabled() or any(p.grad is not None for p in trained):
        for part in module.modules():
            if isinstance(part, FSDPModule):
                part.reshard()


def _options(site: Site) -> dict[str, Any]:
    import torch
    from torch.distributed.fsdp import CPUOffloadPolicy, MixedPrecisionPolicy

    # PyTorch keeps the outermost module gathered by default. Then model.zero_grad() between forward
    # and backward would clear the gradients of gathered parameters, which have none.
    reshards = site.options.get("fsdp_reshard_after_forward", True)
    options: dict[str, Any] = {"reshard_after_forward": bool(reshards)}
    if site.options.get("fsdp_mixed_precision") == "bf16":
        options["mp_policy"] = MixedPrecisionPolicy(
            param_dtype=torch.bfloat16, reduce_dtype=torch.float32, output_dtype=torch.float32
        )
    if site.options.get("fsdp_cpu_offload"):
        options["offload_policy"] = CPUOffloadPolicy()
    return options


def _sharded_as(parameter: Any, value: Any) -> Any:
    """Return a whole tensor of the parameter's shape as a shard like the parameter's.

    Anything else, such as a step count or a tensor that is sharded already, is returned as it is.
    """
    import torch
    from torch.distributed.tensor import DTensor, distribute_tensor

    is_whole = isinstance(value, torch.Tensor) and not isinstance(value, DTensor)
    if not isinstance(parameter, DTensor) or not is_whole or value.shape != parameter.shape:
        return value
    value = value.to(parameter.device)
    # Every rank holds the whole tensor and keeps its own piece, so nothing needs to be sent.
    return distribute_tensor(value, parameter.device_mesh, parameter.placements, src_data_rank=None)


def _whole(value: Any) -> Any:
    from torch.distributed.tensor import DTensor

    return value.full_tensor() if isinstance(value, DTensor) else value


def _whole_weights(_module: nn.Module, state_dict: dict[str, Any], prefix: str, _: Any) -> None:
    state_dict.update({n: _whole(v) for n, v in state_dict.items() if n.startswith(prefix)})


def _shard_weights(module: nn.Module, state_dict: dict[str, Any], prefix: str, *_: Any) -> None:
    for name, parameter in module.named_parameters(recurse=False):
        if (key := prefix + name) in state_dict:
            state_dict[key] = _sharded_as(parameter, state_dict[key])


def _whole_state(_optimizer: Optimizer, state_dict: dict[str, Any]) -> dict[str, Any]:
    states = state_dict["state"].items()
    whole = {number: {k: _whole(v) for k, v in state.items()} for number, state in states}
    return {**state_dict, "state": whole}


def _shard_state(optimizer: Optimizer) -> None:
    for parameter, state in optimizer.state.items():
        state.update({key: _sharded_as(parameter, value) for key, value in state.items()})
