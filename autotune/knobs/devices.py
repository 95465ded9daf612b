"""The knob ``devices``: how many devices train the program's model, and how they share the work.

The knob only chooses; each strategy is a class in ``knobs.strategies``.
"""

from __future__ import annotations

import re
from dataclasses import replace

from autotune.knobs.base import Here, Knob, Scope, Seams
from autotune.knobs.strategies import STRATEGIES, ddp_refusal, devices_of, starts_them_itself
from autotune.program.config import Config, KnobValue
from autotune.program.devices import parts_of
from autotune.program.domain import Domain, NotOffered
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
        # A program that calls torch.distributed itself takes any number of ranks from its launcher.
        if ranks.distributed_by != "torch.distributed" and (
            reason := ddp_refusal(here.hardware, here.profile)
        ):
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
        """Return own for a program that distributes itself, single for any other in one process.

        Ranks of a program that does not distribute itself train by ddp.
        """
        if profile.ranks.distributed_by:
            return f"own-{profile.ranks.world_size}"
        return f"ddp-{profile.ranks.world_size}" if profile.ranks.world_size > 1 else "single"

    def refusal(self, value: KnobValue, here: Here) -> str | None:
        """Return that there are too few devices, or why the strategy does not work here."""
        strategy, ranks = parts_of(value)
        most = devices_of(here.hardware, here.profile)
        if ranks > most:
            return f"{ranks} ranks need one device each, and there are {most}"
        return STRATEGIES[strategy].refusal(here)

    def conflict(self, config: Config) -> str | None:
        """Return why the strategy cannot be combined with the rest of the config, or None."""
        return STRATEGIES[parts_of(config[self.name])[0]].conflict(config)

    def launch(self, value: KnobValue, plan: LaunchPlan) -> LaunchPlan:
        """Start this number of ranks; a strategy without ranks starts one plain process."""
        strategy, ranks = parts_of(value)
        return replace(plan, ranks=ranks if STRATEGIES[strategy].launches_ranks else None)

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Select the strategy before the program starts; it acts when a model is first called."""
        seams.set_strategy(parts_of(value)[0])

    def parse(self, raw: object) -> KnobValue:
        """Return a strategy with its number of ranks, if it has ranks.

        Raises:
            ValueError: *raw* is neither.
        """
        if isinstance(raw, str) and (match := re.fullmatch(r"([a-z_0-9]+?)(-[1-9][0-9]*)?", raw)):
            strategy = STRATEGIES.get(match[1])
            if strategy is not None and strategy.launches_ranks is bool(match[2]):
                return raw
        raise ValueError(f"takes {' or '.join(self.choices)}, or another number, not {raw!r}")
