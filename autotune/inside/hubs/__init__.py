"""The hubs: one for each place of PyTorch at which several parts of autotune act.

A hub replaces its place once and calls its listeners in a fixed order, which ``SeamSet`` declares.
It is installed while somebody listens: under ``autotune run`` only for what the config needs.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from autotune.inside.hubs.backward import BackwardHub
from autotune.inside.hubs.iterate import IterateHub
from autotune.inside.hubs.saving import SaveHub
from autotune.inside.hubs.step import StepHub


@dataclass
class Hubs:
    """The hubs of one process."""

    backward: BackwardHub = field(default_factory=BackwardHub)
    steps: StepHub = field(default_factory=StepHub)
    saving: SaveHub = field(default_factory=SaveHub)
    iterate: IterateHub = field(default_factory=IterateHub)

    def remove(self) -> None:
        """Put PyTorch back as it was at all of them."""
        self.saving.remove()
        self.backward.remove()
        self.steps.remove()
        self.iterate.remove()
