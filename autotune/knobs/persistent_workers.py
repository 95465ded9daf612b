"""The knob ``persistent_workers``: whether workers outlive an epoch.

Source: PyTorch documentation, ``torch.utils.data.DataLoader`` (``persistent_workers``).
"""

from __future__ import annotations

from autotune.knobs.base import Here, WorkerOption
from autotune.program.config import KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.profile import Profile


class PersistentWorkers(WorkerOption):
    """Keep worker processes alive between epochs instead of starting them for each epoch.

    It helps where epochs are short compared with the start of the workers, which import the program
    and receive the dataset. It costs the workers' memory during evaluation. Workers keep the
    dataset of their start, so autotune restarts them when the program has changed it between
    epochs.
    """

    name = "persistent_workers"
    value_type = bool

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return both values for a program with one training loader that can use workers.

        Refused are programs that train from several loaders.
        """
        return here.profile.without_workers or Domain((False, True))

    def current(self, profile: Profile) -> KnobValue:
        """Return the setting of the (first) training loader."""
        return profile.loaders[0].persistent_workers
