"""The knob ``accumulation_steps``: how many batches make one optimizer step.

Gradient accumulation is done by ``inside.seams.accumulation`` within the program's ordinary loop,
so the loop must be of a kind in which several batches can form one exact step.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, takewhile

from autotune.knobs.base import Here, Knob, Seams
from autotune.program.config import KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.flags import Flag
from autotune.program.profile import Profile


class AccumulationSteps(Knob):
    """Batches accumulated into one optimizer step; --lr-rule adjusts the learning rate.

    It gives a larger global batch without its memory. It saves optimizer steps and, with several
    ranks, communication, because gradients are averaged once per step. BatchNorm sees each batch
    separately.
    """

    name = "accumulation_steps"
    value_type = int
    minimum = 1
    flag_names = (
        "accumulation_steps",
        "gradient_accumulation_steps",
        "grad_accumulation_steps",
        "grad_accum_steps",
        "grad_accum",
        "accumulate_grad_batches",
        "accum_steps",
    )

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return 1, 2 and 4 for a loop that clears gradients, runs backward and steps per batch."""
        if refusal := here.profile.without_training_loader:
            return refusal
        if refusal := here.profile.without_optimizer(", so autotune could not delay its updates"):
            return refusal
        if reason := next(_obstacles(here.profile), None):
            return NotOffered(reason)
        return here.profile.unless_by_steps(Domain((1, 2, 4)))

    def current(self, profile: Profile) -> KnobValue:
        """Return 1: a program that accumulates gradients itself is not offered the knob."""
        return 1

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Make this number of batches one optimizer step and scale the learning rates."""
        seams.set_accumulation_steps(int(value))
        self.apply_side_effects(value, seams)

    def apply_side_effects(self, value: KnobValue, seams: Seams) -> None:
        """Scale the learning rates: the program's own flag sets the number of batches."""
        seams.scale_lr_with(accumulation_steps=int(value))

    def flag_domain(self, flag: Flag, here: Here) -> Domain | None:
        """Return the flag's value, its halves down to 1, and twice of it; None without a number.

        Fewer batches to a step leave room for larger ones at the same samples per step.
        """
        own = flag.number
        if not own:
            return None
        halves = takewhile(lambda steps: steps >= 1, (own // 2**k for k in count()))
        return Domain(tuple(sorted({1, *halves, 2 * own})))

    def parse_flag(self, flag: Flag) -> KnobValue:
        """Return the number of batches that the flag sets."""
        return flag.number or self.minimum


def _obstacles(profile: Profile) -> Iterator[str]:
    """Yield the reasons why several batches would not make one exact step.

    Each is a clause; users see the first.
    """
    if len(profile.optimizers) != 1:
        yield (
            f"{len(profile.optimizers)} optimizers step in turn: the gradients that one uses may "
            "include those of another's loss"
        )
    if any("LBFGS" in optimizer.families for optimizer in profile.optimizers):
        yield "LBFGS computes the loss several times within one step"
    # The seam holds back zero_grad(). Gradients that the program clears otherwise would be lost
    # between the batches of a step.
    if profile.loop.zero_grad_to_none is None and not profile.loop.trainer:
        yield "the program does not clear gradients by zero_grad()"
    if profile.loop.accumulates:
        yield "the program accumulates gradients itself"
    # The seam groups batches in the order in which the loader hands them out. With reading ahead,
    # the batch handed out last is not the one that is trained.
    if profile.loop.reads_ahead and not profile.loop.trainer:
        yield "the program reads batches ahead of the one that it trains on"
