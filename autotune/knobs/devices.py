"""The knob ``devices``, which chooses one of ``knobs.strategies``, and these strategies' options.

Source: PyTorch documentation, ``torch.nn.parallel.DistributedDataParallel``,
``torch.nn.SyncBatchNorm`` and ``torch.distributed.fsdp`` (``fully_shard``,
``MixedPrecisionPolicy``, ``CPUOffloadPolicy``).
"""

from __future__ import annotations

import re
from dataclasses import replace

from autotune.knobs.base import Here, Knob, Scope, StrategyOption, StrategyOptions
from autotune.knobs.strategies import STRATEGIES
from autotune.knobs.strategies.base import (
    ddp_refusal,
    devices_of,
    in_place_refusal,
    starts_them_itself,
)
from autotune.program.config import Config, KnobValue
from autotune.program.domain import Domain, NotOffered, parts_of, strategy_in
from autotune.program.may_change import MayChange
from autotune.program.profile import Profile
from autotune.program.program import LaunchPlan


class Devices(Knob):
    """How several devices train one model, and how many: single, ddp-2, zero1-4, fsdp-8.

    single trains on one device. ddp keeps a copy of the model per rank, zero1 also shards the
    optimizer state, and fsdp shards everything. data_parallel and model_split use several GPUs from
    one process. own is for programs that distribute themselves. Each rank trains on its share of
    the data, so a step of two ranks has twice the samples and the learning rate follows. On the CPU
    the ranks divide the cores among them.
    """

    name = "devices"
    changes = MayChange.ROUNDING
    scope = Scope.RESTART  # ranks are started with the program, and a model cannot be put back
    value_type = str
    choices = tuple(f"{n}-2" if s.launches_ranks else n for n, s in STRATEGIES.items())

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return each strategy that works here, with 2, 4, 8, ... ranks and with all devices.

        Devices are GPUs, or cores for a model on the CPU. A program that distributes itself keeps
        its way, but can be started with other numbers of ranks.
        """
        ranks = here.profile.ranks
        if ranks.started_by:
            return NotOffered(starts_them_itself(here.profile))
        # A program that calls torch.distributed itself takes any number of ranks from its launcher,
        # and one in nn.DataParallel can at least train on one device.
        takes_any = ranks.distributed_by == "torch.distributed" or here.profile.is_data_parallel
        if not takes_any and (reason := ddp_refusal(here.hardware, here.profile)):
            return NotOffered(reason)
        # All devices are worth trying even if their number is not a power of two (6 GPUs, 12
        # cores).
        most = max(1, devices_of(here.hardware, here.profile))
        counts = sorted({1 << power for power in range(most.bit_length())} | {most})
        if ranks.distributed_by:
            return Domain(tuple(f"own-{count}" for count in counts))
        values: list[KnobValue] = []
        for name, strategy in STRATEGIES.items():
            if strategy.refusal(here) is not None:
                continue
            values += [f"{name}-{n}" for n in counts[1:]] if strategy.launches_ranks else [name]
        return Domain(tuple(values))

    def current(self, profile: Profile) -> KnobValue:
        if profile.ranks.distributed_by:
            return f"own-{profile.ranks.world_size}"
        if profile.is_data_parallel:
            return "data_parallel"
        return f"ddp-{profile.ranks.world_size}" if profile.ranks.world_size > 1 else "single"

    def refusal(self, value: KnobValue, here: Here) -> str | None:
        strategy, ranks = parts_of(value)
        most = devices_of(here.hardware, here.profile)
        if ranks > most:
            return f"{ranks} ranks need one device each, and there are {most}"
        return STRATEGIES[strategy].refusal(here)

    def conflict(self, config: Config) -> str | None:
        return STRATEGIES[parts_of(config[self.name])[0]].conflict(config)

    def launch(self, value: KnobValue, plan: LaunchPlan) -> LaunchPlan:
        strategy, ranks = parts_of(value)
        return replace(plan, ranks=ranks if STRATEGIES[strategy].launches_ranks else None)

    def parse(self, raw: object) -> KnobValue:
        if isinstance(raw, str) and (match := re.fullmatch(r"([a-z_0-9]+?)(-[1-9][0-9]*)?", raw)):
            strategy = STRATEGIES.get(match[1])
            if strategy is not None and strategy.launches_ranks is bool(match[2]):
                return raw
        raise ValueError(f"takes {' or '.join(self.choices)}, or another number, not {raw!r}")


class DdpOptions(StrategyOptions):
    """How DDP averages gradients: bucket-view, static-graph, small-buckets, large-buckets.

    bucket-view stores gradients inside DDP's communication buckets, which saves a copy and the
    memory of all gradients; ``detach_()`` fails on them. static-graph spares the search for unused
    parameters and fails for models that use different ones from step to step. Small buckets start
    early, so that communication overlaps more of the backward pass; large ones need fewer messages.
    Parts are joined by a plus sign.
    """

    name = "ddp_options"
    changes = MayChange.ROUNDING
    strategies = frozenset({"ddp", "zero1", "own"})
    parts = {  # noqa: RUF012
        "bucket-view": {"ddp_gradient_as_bucket_view": True},
        "static-graph": {"ddp_static_graph": True},
        "small-buckets": {"ddp_bucket_cap_mb": 5},  # torch's default is 25 MiB
        "large-buckets": {"ddp_bucket_cap_mb": 100},
    }
    choices = ("default", *parts)

    def domain(self, here: Here) -> Domain | NotOffered:
        reason = ddp_refusal(here.hardware, here.profile)
        return NotOffered(reason) if reason else Domain(self.choices)

    def conflict(self, config: Config) -> str | None:
        # A static graph must average gradients in the first backward pass, accumulation does so in
        # the last. A program that makes DDP itself accumulates itself, too.
        is_static = "static-graph" in str(config[self.name])
        accumulates = int(config.get("accumulation_steps", 1)) > 1
        if is_static and accumulates and strategy_in(config, "ddp") != "own":
            return (
                "DDP with a static graph must average gradients in its first backward pass, but "
                "accumulation_steps delays that."
            )
        return None


class SyncBatchnorm(StrategyOption):
    """Compute BatchNorm statistics over the samples of all ranks instead of each rank's alone.

    On makes several ranks train like one device with the whole batch. It costs one communication
    per BatchNorm layer in each forward and backward pass, so it is slower.
    """

    name = "sync_batchnorm"
    changes = MayChange.BATCH  # other samples are normalised together
    strategies = frozenset({"ddp", "zero1"})
    value_type = bool
    usual = False  # each rank's BatchNorm sees that rank's samples

    def domain(self, here: Here) -> Domain | NotOffered:
        if not here.profile.model.batch_norm_layers:
            return NotOffered("the model has no BatchNorm")
        # PyTorch's SyncBatchNorm raises an error for tensors on the CPU.
        if here.profile.device != "cuda":
            return NotOffered("torch's SyncBatchNorm works on GPUs only")
        reason = in_place_refusal(here.hardware, here.profile)
        return NotOffered(reason) if reason else Domain((False, True))


class FsdpOptions(StrategyOptions):
    """How FSDP gathers and stores weights: whole, keep-gathered, bf16, cpu-offload.

    By default it gathers one repeated block while another computes, and drops gathered weights
    after the forward pass. whole gathers the model at once: fewer messages, but memory for all
    weights. keep-gathered saves the second gathering of a step, also at the cost of memory; between
    forward and backward the model then shows parameters that have no gradients. bf16 gathers and
    computes in bf16, while stored weights and averaging stay fp32. cpu-offload keeps the shards in
    host memory and steps there, for models that do not fit otherwise. Parts are joined by a plus
    sign.
    """

    name = "fsdp_options"
    changes = MayChange.ROUNDING
    rounds_coarsely = True  # bf16 does
    strategies = frozenset({"fsdp"})
    parts = {  # noqa: RUF012
        "whole": {"fsdp_shard": "whole"},
        "keep-gathered": {"fsdp_reshard_after_forward": False},
        "bf16": {"fsdp_mixed_precision": "bf16"},
        "cpu-offload": {"fsdp_cpu_offload": True},
    }
    choices = ("default", *parts)

    def domain(self, here: Here) -> Domain | NotOffered:
        if reason := in_place_refusal(here.hardware, here.profile):
            return NotOffered(reason)
        on_cuda = here.profile.device == "cuda"
        has_bf16 = here.hardware.supports_bf16_gpu if on_cuda else here.hardware.supports_bf16_cpu
        can = {
            "whole": here.profile.model.repeated_blocks >= 2,
            "bf16": has_bf16,
            "cpu-offload": on_cuda,
        }
        return Domain(tuple(choice for choice in self.choices if can.get(choice, True)))
