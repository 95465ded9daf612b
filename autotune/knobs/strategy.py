"""The knob ``strategy``: how several devices train the program's model.

The knob only chooses; each strategy is a class in ``knobs.strategies``.
"""

from __future__ import annotations

from dataclasses import replace

from autotune.knobs.base import Here, Knob, Scope, Seams
from autotune.knobs.strategies import STRATEGIES, ddp_refusal
from autotune.program.config import Config, KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.profile import Profile
from autotune.program.program import LaunchPlan


class Strategy(Knob):
    """How several devices train one model: whole copies, shards or stages.

    single trains on one device. ddp keeps a copy of the model per rank, zero1 also shards the
    optimizer state, and fsdp shards everything. data_parallel and model_split use several GPUs from
    one process. own is for programs that distribute themselves.
    """

    name = "strategy"
    scope = Scope.RESTART  # a distributed model cannot be put back
    value_type = str
    choices = tuple(STRATEGIES)

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return the strategies that work for this program on this machine.

        A program that distributes itself keeps its own way. Programs that no ranks can train are
        refused with the reason.
        """
        reasons = {n: s.refusal(here) for n, s in STRATEGIES.items()}
        if here.profile.ranks.distributed_by:
            return Domain(("own",))
        if reason := ddp_refusal(here.hardware, here.profile):
            return NotOffered(reason)
        return Domain(tuple(name for name, reason in reasons.items() if reason is None))

    def current(self, profile: Profile) -> KnobValue:
        """Return own for a program that distributes itself, single for any other."""
        return "own" if profile.ranks.distributed_by else "single"

    def refusal(self, value: KnobValue, here: Here) -> str | None:
        """Return why the strategy does not work here, as a clause, or None."""
        return STRATEGIES[str(value)].refusal(here)

    def conflict(self, config: Config) -> str | None:
        """Return why the strategy cannot be combined with the rest of the config, or None."""
        return STRATEGIES[str(config[self.name])].conflict(config)

    def launch(self, value: KnobValue, plan: LaunchPlan) -> LaunchPlan:
        """Set the number of ranks that are started.

        A strategy without ranks starts the program as one plain process. Others start one rank
        unless the knob ``world_size`` has set a number.
        """
        if not STRATEGIES[str(value)].launches_ranks:
            return replace(plan, ranks=None)
        return replace(plan, ranks=plan.ranks or 1)

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Select the strategy before the program starts; it acts when a model is first called."""
        seams.set_strategy(str(value))
