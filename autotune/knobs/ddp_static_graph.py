"""The knob ``ddp_static_graph``: whether DDP may assume the same graph in every step.

Source: PyTorch documentation, ``torch.nn.parallel.DistributedDataParallel`` (``static_graph``).
"""

from __future__ import annotations

from autotune.knobs.base import Here, StrategyOption
from autotune.knobs.strategies import ddp_refusal
from autotune.program.config import Config, KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.profile import Profile


class DdpStaticGraph(StrategyOption):
    """Tell DDP that every step uses the same parameters, so that it can plan communication.

    It saves the search for unused parameters in each step. It fails for models that use different
    parameters from step to step.
    """

    name = "ddp_static_graph"
    strategies = frozenset({"ddp", "zero1", "own"})
    value_type = bool

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return both values where DDP trains the program."""
        if reason := ddp_refusal(here.hardware, here.profile):
            return NotOffered(reason)
        return Domain((False, True))

    def conflict(self, config: Config) -> str | None:
        """Refuse the combination with accumulation by autotune.

        A static graph must average gradients in the first backward pass, but accumulation averages
        them only in a group's last pass. A program with its own DDP accumulates in its own way.
        """
        accumulates = int(config.get("accumulation_steps", 1)) > 1
        if config.get(self.name) is True and accumulates and config.get("strategy") != "own":
            return (
                "DDP with a static graph must average gradients in its first backward pass, but "
                "accumulation_steps delays that."
            )
        return None

    def current(self, profile: Profile) -> KnobValue:
        """Return False, PyTorch's default; what the program itself passes to DDP is not known."""
        return False
