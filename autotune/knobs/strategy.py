"""The strategy knob."""

from __future__ import annotations

from dataclasses import replace

from autotune.knobs.base import Here, Knob, Scope, Seams
from autotune.knobs.strategies import STRATEGIES, ddp_refusal
from autotune.program.config import Config, KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.profile import Profile
from autotune.program.program import LaunchPlan


class Strategy(Knob):
    """How the model is trained on several devices: copies of it, shards, or stages."""

    name = "strategy"
    scope = Scope.RESTART
    value_type = str
    choices = tuple(STRATEGIES)

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return the strategies that can act here."""
        reasons = {n: s.refusal(here) for n, s in STRATEGIES.items()}
        if here.profile.distributes_itself:
            return Domain(("own",))
        if reason := ddp_refusal(here.hardware, here.profile):
            return NotOffered(reason)
        return Domain(tuple(name for name, reason in reasons.items() if reason is None))

    def current(self, profile: Profile) -> KnobValue:
        """Return the program's own way, or that it has none."""
        return "own" if profile.distributes_itself else "single"

    def refusal(self, value: KnobValue, here: Here) -> str | None:
        """Return why a strategy cannot act here."""
        return STRATEGIES[str(value)].refusal(here)

    def conflict(self, config: Config) -> str | None:
        """Return what the strategy cannot go with."""
        return STRATEGIES[str(config[self.name])].conflict(config)

    def launch(self, value: KnobValue, plan: LaunchPlan) -> LaunchPlan:
        """Start ranks for a strategy that has some, one unless another knob says how many."""
        if not STRATEGIES[str(value)].launches_ranks:
            return replace(plan, ranks=None)
        return replace(plan, ranks=plan.ranks or 1)

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Distribute the models that the program trains, once they are known."""
        seams.set_strategy(str(value))
