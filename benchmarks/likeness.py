"""Whether a program trains under a knob as it does alone: two recordings compared; pure."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import fmean, median
from typing import Self

from pydantic import TypeAdapter

from autotune.program.lr import LrRule, lr_factor

TOLERANCE = 1e-3  # of a loss, in its first step; as many times as much in a later one
MOVED_TOLERANCE = 0.05  # of the way that parameters have gone: Adam makes steps of rounding
NOISES = 3  # what may differ, in differences of two equal runs
FIRST_STEP = 1.6  # times as far as the rule says; the gradient of a batch is less noisy in a larger
WAY = 3.0  # times as far, over the same samples
EARLY = 4  # steps that tell the batch
STAGE = 3  # steps with the program's own batch, so that it is no epoch's last one
COARSE = 0.1  # of the first loss, computed in fewer digits
RATE_TOLERANCE = 0.01
ENDED = "the program ended"  # as recorder.py says it
FEWER_INPUTS = 0.8  # of the different inputs that the program alone draws


class Verdict(StrEnum):
    """What is said of a knob's value."""

    SAME = "same"
    ROUNDED = "same but for rounding"
    DRAWS = "draws otherwise"
    DESIGN = "by design"
    DIFFERS = "DIFFERS"
    FAILED = "failed"
    REFUSED = "refused"


@dataclass(frozen=True)
class Judgement:
    """A verdict with what it rests on."""

    verdict: Verdict
    evidence: str


@dataclass(frozen=True)
class Step:
    """One optimizer step, as recorder.py writes it.

    Attributes:
        losses: On which backward was called.
        samples: That came out of loaders, or went into the model where there is none.
        rates: Learning rates of the optimizer's groups, as it stepped.
        ids: Digest of the numbers of the samples; empty without a loader.
        integers: Digest of the integers in the batches.
        inputs: Digest of the other tensors.
        rows: Digests of single inputs.
        gradient: Norm of the gradients that the optimizer got.
        moved: Norm of the way that the parameters have gone since they were first seen.
    """

    losses: tuple[float, ...]
    samples: int
    rates: tuple[float, ...]
    ids: str
    integers: str
    inputs: str
    rows: tuple[str, ...]
    gradient: float
    moved: float


@dataclass(frozen=True)
class Recording:
    """How a program trained.

    Attributes:
        ended: Why it ended before the wanted steps; empty if it did not.
        begun: Some values of the parameters as they were first seen.
        parameters: The same values after the steps that are compared.
    """

    steps: tuple[Step, ...]
    ended: str
    begun: tuple[float, ...]
    parameters: tuple[float, ...]

    @classmethod
    def read(cls, text: str) -> Self:
        """Return what recorder.py wrote."""
        found: Self = TypeAdapter(cls).validate_json(text)
        return found

    def of_ranks(self, ranks: int) -> Recording:
        """Return the training of all ranks, of which the first one recorded its own share."""
        steps = tuple(replace(step, samples=ranks * step.samples) for step in self.steps)
        return replace(self, steps=steps)

    @property
    def samples_per_step(self) -> float:
        """Samples of an ordinary step, before another stage or fold has another batch.

        The first has what is read ahead; of optimizers that step in turn, one gets the batch.
        """
        early = [step.samples for step in self.steps[1:EARLY] if step.samples]
        return float(median(early or [step.samples for step in self.steps]))

    @property
    def losses(self) -> tuple[tuple[float, ...], ...]:
        """The losses of all steps."""
        return tuple(step.losses for step in self.steps)


@dataclass(frozen=True)
class Alone:
    """The program without autotune.

    Attributes:
        run: Its training, for as many steps as the largest batch needs samples.
        again: The same once more, for the steps that are compared.
        otherwise: With another seed.
    """

    run: Recording
    again: Recording
    otherwise: Recording

    @property
    def is_reproducible(self) -> bool:
        """Both runs with one seed have the same losses to the last digit."""
        return self.again.losses == self.run.losses[: len(self.again.steps)]

    @property
    def seeds_itself(self) -> bool:
        """Another seed from outside changes nothing."""
        return self.otherwise.losses == self.run.losses[: len(self.otherwise.steps)]

    def describe(self) -> str:
        """Say how far the program's training is settled by its seed."""
        seeded = "seeds itself" if self.seeds_itself else "takes its seed from outside"
        noise = "to the digit" if self.is_reproducible else f"within {self.noise:.1e} of its way"
        ended = f", then {self.run.ended}" if self.run.ended else ""
        return f"{len(self.again.steps)} steps, again {noise}; {seeded}{ended}"

    @property
    def noise(self) -> float:
        """How far the parameters of both runs with one seed lie apart, in ways that they went."""
        return _apart(self.run, self.again)


def judge(
    alone: Alone, tuned: Recording, rule: LrRule, steps: int, *, by_design: bool
) -> Judgement:
    """Compare a program's training under a knob with its own.

    Args:
        alone: The program without autotune.
        tuned: The program under the knob.
        rule: How rates follow the batch.
        steps: How many steps were wanted of it.
        by_design: The knob changes learning; others must change nothing.
    """
    wanted = min(steps, len(alone.run.steps))
    is_done = by_design and tuned.ended == ENDED  # fewer steps of more samples are an epoch
    if not tuned.steps or (len(tuned.steps) < wanted and not is_done):
        return Judgement(Verdict.FAILED, f"after {len(tuned.steps)} steps: {tuned.ended}")
    if fault := _not_finite(alone, tuned):
        return Judgement(Verdict.DIFFERS, fault)
    return _by_design(alone, tuned, rule) if by_design else _unchanged(alone, tuned)


def _not_finite(alone: Alone, tuned: Recording) -> str:
    if not all(math.isfinite(loss) for losses in alone.run.losses for loss in losses):
        return ""
    for number, losses in enumerate(tuned.losses, start=1):
        if not all(map(math.isfinite, losses)):
            return f"the loss of step {number} is {losses}"
    return ""


def _unchanged(alone: Alone, tuned: Recording) -> Judgement:
    """A knob that claims to change nothing."""
    if fault := _other_facts(alone.run, tuned) or _fewer_inputs(alone.run, tuned):
        return Judgement(Verdict.DIFFERS, fault)
    way = _apart(alone.run, tuned)
    if tuned.losses == alone.run.losses[: len(tuned.steps)] and not way:
        return Judgement(Verdict.SAME, f"{len(tuned.steps)} steps")
    number, difference = _first_off(alone, tuned)
    if number is None:
        evidence = f"losses within {difference:.1e}, parameters {way:.1e} of the way apart"
        is_near = way <= max(MOVED_TOLERANCE, NOISES * alone.noise)
        return Judgement(Verdict.ROUNDED if is_near else Verdict.DIFFERS, evidence)
    step, own = tuned.steps[number], alone.run.steps[number]
    what = f"loss of step {number + 1}: {_shown(step)}, {_shown(own)} alone"
    if own.ids and step.ids == own.ids and step.inputs != own.inputs:
        return Judgement(Verdict.DRAWS, f"same samples, other draws; {what}")
    return Judgement(Verdict.DIFFERS, what)


def _other_facts(run: Recording, tuned: Recording) -> str:
    """Say which rates or samples differ: they are the same to the digit."""
    for number, (own, step) in enumerate(zip(run.steps, tuned.steps, strict=False), start=1):
        if own.samples != step.samples:
            return f"step {number} has {step.samples} samples, {own.samples} alone"
        if not _alike(own.rates, step.rates, 1.0, 1e-9):
            return f"rates of step {number}: {_rates(step)}, {_rates(own)} alone"
        if own.ids != step.ids:
            return f"step {number} gets other samples"
    return ""


def _fewer_inputs(run: Recording, tuned: Recording) -> str:
    """Say that a dataset repeats its draws."""
    compared = (tuned.steps, run.steps[: len(tuned.steps)])
    ours, theirs = ([row for step in steps for row in step.rows] for steps in compared)
    if theirs and len({*ours}) < FEWER_INPUTS * len({*theirs}):
        return f"{len({*ours})} different inputs of {len(ours)}, {len({*theirs})} alone"
    return ""


def _first_off(alone: Alone, tuned: Recording) -> tuple[int | None, float]:
    """The first step whose losses are too far apart, and the largest relative difference."""
    worst, noise = 0.0, 0.0
    typical = fmean([abs(x) for s in alone.run.steps for x in s.losses] or [1.0])
    for number, step in enumerate(tuned.steps):
        own = alone.run.steps[number].losses
        scale = max([0.1 * typical, *map(abs, own), 1e-12])
        if number < len(alone.again.steps):
            noise = max(noise, _distance(own, alone.again.steps[number].losses) / scale)
        difference = _distance(own, step.losses) / scale
        worst = max(worst, difference)
        if difference > max(TOLERANCE * (number + 1), NOISES * noise):
            return number, worst
    return None, worst


def _by_design(alone: Alone, tuned: Recording, rule: LrRule) -> Judgement:
    """A knob that changes the samples of a step, or how finely it computes."""
    compared = replace(alone.run, steps=alone.run.steps[: len(tuned.steps)])
    own_batch = compared.samples_per_step
    growth = tuned.samples_per_step / own_batch if own_batch else 1.0  # calls without a batch
    factor = lr_factor(rule, growth)
    faults = [
        *_own_batch_off(compared, tuned),
        *_rates_off(alone.run, tuned, growth, factor),
        *_first_step_off(alone.run, tuned, growth, factor),
        *_way_off(alone.run, tuned, growth, factor),
    ]
    own, ours = alone.run.steps[0], tuned.steps[0]
    if growth == 1.0 and _distance(own.losses, ours.losses) > COARSE * max(map(abs, own.losses)):
        faults.append(f"first loss: {_shown(ours)}, {_shown(own)} alone")
    evidence = f"{growth:g} x the samples, rate x {_factor_seen(alone.run, tuned):.3g}"
    if faults:
        return Judgement(Verdict.DIFFERS, "; ".join([*faults, evidence]))
    moved = ours.moved / max(own.moved, 1e-30)
    return Judgement(Verdict.DESIGN, f"{evidence}, first step x {moved:.3g}")


def _own_batch_off(run: Recording, tuned: Recording) -> Iterator[str]:
    """A later loader, a fold or a stage with the program's own batch, at a rate for another."""
    own, rates = run.samples_per_step, {step.rates for step in run.steps}
    for number in range(len(tuned.steps) - STAGE + 1):
        stage = tuned.steps[number : number + STAGE]
        fits = any(_alike(r, stage[0].rates, 1.0, RATE_TOLERANCE) for r in rates)
        if all(step.samples == own for step in stage) and not fits:
            yield (
                f"steps from {number + 1} have the program's own {own:g} samples at rate "
                f"{_rates(stage[0])}, {_rates(run.steps[0])} alone"
            )
            return


def _rates_off(run: Recording, tuned: Recording, growth: float, factor: float) -> Iterator[str]:
    """Rates that are not the rule's, neither at the same step nor after the same samples.

    A later stage by a loader that is not tuned has the program's own batch, and so its own rate.
    """
    for number, step in enumerate(tuned.steps):
        places = {number, min(round(number * growth), round((number + 1) * growth) - 1)}
        own = [run.steps[p] for p in places if 0 <= p < len(run.steps)]
        wanted = {factor, 1.0} if step.samples == run.samples_per_step else {factor}
        if own and not any(
            _alike(s.rates, step.rates, w, RATE_TOLERANCE) for s in own for w in wanted
        ):
            yield (
                f"rate of step {number + 1}: {_rates(step)}, the rule says "
                f"{factor:.3g} x {_rates(own[0])}"
            )
            return


def _first_step_off(
    run: Recording, tuned: Recording, growth: float, factor: float
) -> Iterator[str]:
    own, ours = run.steps[0].moved, tuned.steps[0].moved
    if not own:
        return
    least = factor / math.sqrt(max(growth, 1.0)) / FIRST_STEP
    if not least <= ours / own <= factor * FIRST_STEP:
        gradients = tuned.steps[0].gradient / max(run.steps[0].gradient, 1e-30)
        yield (
            f"the first step moves the parameters {ours / own:.3g} x as far, the rule says "
            f"{factor:.3g} (gradient x {gradients:.3g})"
        )


def _way_off(run: Recording, tuned: Recording, growth: float, factor: float) -> Iterator[str]:
    """After as many samples, the parameters have gone a way of another order.

    Fewer steps go a shorter one where the rate grows less than the samples, or still warms up.
    """
    there = round(len(tuned.steps) * growth)
    if not 0 < there <= len(run.steps):
        return
    own, ours = run.steps[there - 1].moved, tuned.steps[-1].moved
    rates = [sum(s.rates[0] for s in of if s.rates) for of in (run.steps[:there], tuned.steps)]
    due = rates[1] / rates[0] if rates[0] else factor / growth
    if own and not min(due, 1.0) / WAY <= ours / own <= WAY:
        yield f"over the same samples the parameters move {ours / own:.3g} x as far"


def _factor_seen(run: Recording, tuned: Recording) -> float:
    """How many times the program's own rate is in force, in the first step that has one."""
    both = zip(run.steps, tuned.steps, strict=False)
    seen = (b.rates[0] / a.rates[0] for a, b in both if a.rates and b.rates and a.rates[0])
    return next(seen, 1.0)


def _alike(own: Sequence[float], ours: Sequence[float], factor: float, tolerance: float) -> bool:
    return len(own) == len(ours) and all(
        math.isclose(a * factor, b, rel_tol=tolerance, abs_tol=1e-12)
        for a, b in zip(own, ours, strict=True)
    )


def _distance(ours: Sequence[float], theirs: Sequence[float]) -> float:
    if len(ours) != len(theirs):
        return math.inf
    return max((abs(a - b) for a, b in zip(ours, theirs, strict=True)), default=0.0)


def _apart(one: Recording, other: Recording) -> float:
    """How far two sets of parameters lie apart, in ways that the first went; 0 if unknown."""
    ours, theirs = one.parameters, other.parameters
    if not ours or len(ours) != len(theirs) or len(ours) != len(one.begun):
        return 0.0
    return math.dist(ours, theirs) / max(math.dist(ours, one.begun), 1e-30)


def _shown(step: Step) -> str:
    return ", ".join(f"{loss:.6g}" for loss in step.losses[:3])


def _rates(step: Step) -> str:
    return ", ".join(f"{rate:.4g}" for rate in step.rates[:3]) or "none"
