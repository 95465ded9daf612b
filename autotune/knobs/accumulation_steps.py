"""The accumulation_steps knob."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.knobs.base import Here, Knob, Seams
from autotune.program.config import KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.flags import Flag
from autotune.program.profile import HandKind, Profile


class AccumulationSteps(Knob):
    """Batches whose gradients make one optimizer step; the learning rate follows their sum."""

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
        """Return one to four for a loop of the ordinary kind: clear, backward, step."""
        if refusal := here.profile.without_training_loader:
            return refusal
        if refusal := here.profile.without_optimizer("and its updates could not be held back"):
            return refusal
        reason = next(_obstacles(here.profile), None)
        return NotOffered(reason) if reason else here.profile.unless_by_steps(Domain((1, 2, 4)))

    def current(self, profile: Profile) -> KnobValue:
        """Return 1: a program that accumulates itself is not offered the knob."""
        return 1

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Group the batches to come, and let the learning rate follow."""
        seams.set_accumulation_steps(int(value))
        self.apply_side_effects(value, seams)

    def apply_side_effects(self, value: KnobValue, seams: Seams) -> None:
        """Scale the learning rate."""
        seams.scale_lr_with(accumulation_steps=int(value))

    def flag_domain(self, flag: Flag, here: Here) -> Domain | None:
        """Return the flag's own value, half and twice of it."""
        own = flag.number
        if not own:
            return None
        return Domain(tuple(sorted({max(1, own // 2), own, 2 * own})))

    def parse_flag(self, flag: Flag) -> KnobValue:
        """Return the batches that the flag asks for."""
        return flag.number or self.minimum


BY_HAND = {
    HandKind.PARAMETERS: "which would be done for each micro-batch",
    HandKind.GRADIENTS: "which would act on partial sums",
    HandKind.KEPT: "which would be done for each micro-batch",
    HandKind.THROWN: "and with them those of micro-batches before",
    HandKind.PASSES: "for the last micro-batch alone",
    HandKind.RATE: "which would count micro-batches as steps",
    HandKind.SCHEDULE: "which counts each batch as a step",
    HandKind.COUNTED_SCHEDULE: "and would not come to its end",
}


def _obstacles(profile: Profile) -> Iterator[str]:
    """Why several batches would not make one exact step."""
    if len(profile.optimizers) != 1:
        yield (
            f"{len(profile.optimizers)} optimizers step in turn: one's gradients may hold another's"
        )
    if any("LBFGS" in optimizer.families for optimizer in profile.optimizers):
        yield "LBFGS computes the loss again by itself, within its step"
    if profile.zero_grad_to_none is None and not profile.trainer:
        yield "the program does not clear gradients by zero_grad()"
    if profile.in_batch_loss:
        yield f"the loss compares samples of one batch: {profile.in_batch_loss}"
    if profile.accumulates:
        yield "the program accumulates gradients itself"
    if profile.reads_ahead and not profile.trainer:
        yield "the program reads batches ahead of the one that it trains on"
    if reason := profile.depends_on_batch_before:
        yield reason
    for kind, consequence in BY_HAND.items():
        if work := profile.hand_work(kind):
            yield f"the program {kind} ({work.evidence}), {consequence}"
