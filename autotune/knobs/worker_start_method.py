"""The knob ``worker_start_method``: how the loader's worker processes are started.

Source: Python documentation, ``multiprocessing`` ("Contexts and start methods").
"""

from __future__ import annotations

from autotune.knobs.base import Here, WorkerOption
from autotune.program.config import KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.profile import Profile


class WorkerStartMethod(WorkerOption):
    """How worker processes start: fork copies the program, spawn and forkserver start fresh.

    fork starts fastest. spawn and forkserver import the program again and pickle the dataset, which
    takes longer, but their workers do not share the memory and the locks of the training process.
    """

    name = "worker_start_method"
    option = "start_method"
    value_type = str
    choices = ("fork", "forkserver", "spawn")

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return all three methods for a program with one training loader that can use workers.

        Refused are programs that train from several loaders.
        """
        return here.profile.without_workers or Domain(self.choices)

    def current(self, profile: Profile) -> KnobValue:
        """Return the start method of the (first) training loader."""
        return profile.loaders[0].start_method
