"""Count what happens between two boundaries of the program's steps."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from autotune.inside.examining.operators import OperatorCount
from autotune.inside.listener import Root
from autotune.inside.seams.parts import PartsClock

# Number of recent steps to which a step's calls without gradients, and what it saved, are compared:
# counts that none of them had are a validation pass or a checkpoint. A teacher model is called
# equally often in every step.
STEPS_ALIKE = 4
# In a program without a DataLoader, some of the first steps may not call the model that is counted.
# After this many, a step is the only unit that can be counted.
MAX_UNCOUNTED = 8


class Step(NamedTuple):  # made in each step, in a quarter of a frozen dataclass's time
    """What a finished step consisted of.

    Attributes:
        wait_s: Seconds of the step in which the program waited for batches.
        tokens: Token ids that went into the model; 0 if its input is not token ids.
    """

    samples: int
    wait_s: float
    tokens: int


class StepCounts:
    """Counts what happens in the present step, and compares it with the steps before.

    Attributes:
        batch_samples: Samples in the batches of the training loader.
        forward_samples: Samples that went into *root*.
        tokens: Token ids that went into *root*.
        calls_without_grad: Calls of the largest model without gradients.
        saves: How often the thread that trains has saved something.
        root: The largest model that was called with gradients.
        has_stepped: Whether the optimizer's step was made, so that the step ends at its boundary.
        clock: Told when the program requests a batch and when it has it; None for most of the time.
    """

    def __init__(self) -> None:
        self._usual = deque([(0, 0)], maxlen=STEPS_ALIKE)
        self._uncounted = 0
        self.has_stepped = False
        self.clock: PartsClock | OperatorCount | None = None
        self.begin()

    def begin(self) -> None:
        """Count from zero."""
        self.batches = self.batch_samples = self.forward_samples = self.tokens = 0
        self.calls_without_grad = self.saves = 0
        self.wait_s = 0.0
        self.root: Root | None = None

    def end(self) -> bool:
        """End the step and count from zero; return whether it held nothing besides training.

        It held more if it was unlike the last steps in its calls without gradients, or its saves.
        """
        besides = self.calls_without_grad, self.saves
        is_usual = besides in self._usual
        self._usual.append(besides)
        self.has_stepped = False
        self.begin()
        return is_usual

    def in_steps(self, *, is_observed: bool) -> int:
        """Return the samples of a step in which no samples could be counted: 1 if none ever are."""
        self._uncounted += is_observed
        return int(self._uncounted > MAX_UNCOUNTED)
