"""FollowerRank: a rank that carries out what the first rank announces, at agreed steps."""

from __future__ import annotations

from collections.abc import Callable

from autotune.inside.processes.meetings import Meetings
from autotune.inside.ranks.group import Group
from autotune.inside.step_counts import Step
from autotune.inside.step_tracker import Rank, StepTracker
from autotune.inside.turns import Hands, Turns
from autotune.machine.hardware import Gpu
from autotune.machine.probes.torch_memory import torch_gpus
from autotune.measurement.outcome import Epochs
from autotune.measurement.turn import Turn
from autotune.program.applied_config import AppliedConfig


class FollowerRank(Rank):
    """Counts steps and synchronizes with the first rank.

    It applies a config only when the first rank commands it, so all switch before the same step.
    """

    def __init__(
        self,
        applied: AppliedConfig | None,
        group: Group,
        quit_process: Callable[[], None],
        epochs: Epochs = Epochs.ENDLESS,
    ) -> None:
        self.tracker = StepTracker(applied, group, self, epochs)
        self._quit = quit_process
        self._meetings = Meetings(group)
        self._turns: Turns | None = None

    def observed(self) -> None:
        """Synchronize for the first time, when the first steps have shown what the program is.

        At every synchronization the first rank announces the step of the next one.
        """
        self._meet(gpus=torch_gpus(self.tracker.device))

    def paused(self) -> None:
        """Stop the clock at the end of an epoch.

        Evaluation and checkpoints between epochs do not count as training time.
        """
        self._meetings.tally.pause()

    def resumed(self) -> None:
        """Start the clock again when the next epoch begins."""
        self._meetings.tally.go_on()
        if self._turns is not None:
            self._turns.resume()

    def on_step_end(self, step: Step) -> None:
        """Count a step, and synchronize if this is the agreed one."""
        self._meetings.add(step)
        if self._turns is not None:
            self._turns.step(*step)
            if self._turns.is_done:
                taken, self._turns = self._turns.told(), None
                self.tracker.seams.steps.rates.is_held = False
                self._meet(turns=taken)
        elif self._meetings.steps_left <= 0:
            self._meet()

    def disturbed(self) -> None:
        """Leave the present step out."""
        if self._turns is not None:
            self._turns.disturb()

    def _meet(self, gpus: tuple[Gpu, ...] = (), turns: tuple[Turn, ...] = ()) -> None:
        """Report to the first rank and carry out its command."""
        order = self._meetings.attend(gpus, turns)
        if order.ends:
            self._quit()
        if order.turns is not None:
            self.tracker.steering.spare.prepare()
            self._turns = self.tracker.begin_turns(order.turns, Hands(self.tracker.switch))
