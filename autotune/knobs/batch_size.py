"""The samples of a step: ``batch_size`` and ``accumulation_steps``.

More samples to a step change what is trained, so the learning rate follows them (``program.lr``),
and what they teach is compared before they are recommended (``tuning.checking.learning_check``).
Gradients are accumulated by ``inside.seams.accumulation`` within the program's ordinary loop, so
the loop must be of a kind in which several batches can form one exact step.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count, takewhile

from autotune.knobs.base import Here, Knob
from autotune.program.config import KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.flags import Flag
from autotune.program.may_change import MayChange
from autotune.program.profile import SEVERAL_LOADERS, Profile

# How far a scaled learning rate holds depends on model and data: for some to 64 times the batch,
# for others less than 8 times (Shallue et al. 2019, "Measuring the Effects of Data Parallelism",
# section 4.1). So the best config at the program's own batch is shown as well.
FACTORS = (1, 2, 4, 8, 16, 32)
MAX_FACTOR_BY_STEPS = 8  # where the number of steps is fixed, or the length of an epoch unknown
# Workers would prefetch a shorter epoch almost whole, before its first step.
MIN_STEPS_PER_EPOCH = 20
TOO_SHORT = f"batches of {{}} cut {{}} samples into fewer than {MIN_STEPS_PER_EPOCH} steps"


class BatchSize(Knob):
    """Samples per batch of the training loader; --lr-rule adjusts the learning rate.

    Larger batches keep a GPU or many cores busier and lower the overhead per sample. They cost
    memory, give fewer optimizer steps per epoch and can change the final accuracy, which autotune
    does not measure.
    """

    name = "batch_size"
    changes = MayChange.BATCH
    value_type = int
    minimum = 1
    flag_names = (
        "batch_size",
        "batchsize",
        "bs",
        "train_batch_size",
        "per_device_train_batch_size",
        "micro_batch_size",
        "mini_batch_size",
    )

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return the program's size and its doubles, while an epoch keeps 20 steps.

        Where the program makes a fixed number of steps, only users who name the knob get it.
        """
        if obstacle := next(_obstacles(here.profile), None):
            return NotOffered(obstacle, is_unreached=True)
        refusal = here.profile.without_optimizer(
            ", so its learning rate could not follow the batch size"
        )
        if refusal is not None:
            return refusal
        loader = here.profile.loaders[0]
        own = loader.batch_size
        assert own is not None, "a size that is not known is an obstacle"
        # A dataset without a length sets no limit.
        most = (loader.dataset_len or 1 << 62) // MIN_STEPS_PER_EPOCH
        limit = MAX_FACTOR_BY_STEPS if here.profile.loop.length.bounded_by_steps else max(FACTORS)
        sizes = tuple(own * f for f in FACTORS if f == 1 or (f <= limit and own * f <= most))
        alone = "" if len(sizes) > 1 else TOO_SHORT.format(2 * own, loader.dataset_len)
        return here.profile.unless_by_steps(Domain(sizes, alone))

    def current(self, profile: Profile) -> KnobValue:
        own = profile.loaders[0].batch_size
        assert own is not None, "batch_size is not offered without one"
        return own

    def flag_domain(self, flag: Flag, here: Here) -> Domain | None:
        """Return the flag's value and its multiples; None without a number.

        An epoch keeps 20 steps if the length of the dataset is known; else the batch grows at most
        8 times, as where the program makes a fixed number of steps.
        """
        profile = here.profile
        own = flag.number
        if not own:
            return None
        lengths = [loader.dataset_len for loader in profile.loaders if loader.dataset_len]
        most = min(lengths) // MIN_STEPS_PER_EPOCH if lengths else MAX_FACTOR_BY_STEPS * own
        if profile.loop.length.bounded_by_steps:
            most = MAX_FACTOR_BY_STEPS * own
        return Domain(tuple(own * f for f in FACTORS if f == 1 or own * f <= most))


def _obstacles(profile: Profile) -> Iterator[str]:
    """Yield the reasons why the batch size cannot be set; users see the first."""
    if not profile.loaders:
        yield "the program draws its batches without a torch DataLoader"
        return
    if profile.training_loader is None:
        yield SEVERAL_LOADERS.format(len(profile.loaders))
    # With its own batch sampler the program decides which samples share a batch; a DataLoader
    # cannot be rebuilt with another batch_size then.
    if profile.loaders[0].has_batch_sampler or profile.loaders[0].is_rewrapped:
        name = profile.loaders[0].batch_sampler
        yield f"the training loader has its own batch sampler{name and f', a {name}'}"
    # Without automatic batching, only the dataset knows how many samples an item holds.
    if profile.loaders[0].batch_size is None:
        yield "the dataset makes whole batches itself (batch_size=None)"


class AccumulationSteps(Knob):
    """Batches accumulated into one optimizer step; --lr-rule adjusts the learning rate.

    It gives a larger global batch without its memory. It saves optimizer steps and, with several
    ranks, communication, because gradients are averaged once per step. BatchNorm sees each batch
    separately.
    """

    name = "accumulation_steps"
    changes = MayChange.BATCH
    usual = 1
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
        if refusal := here.profile.without_training_loader:
            return refusal
        if refusal := here.profile.without_optimizer(", so autotune could not delay its updates"):
            return refusal
        if reason := next(_inexact(here.profile), None):
            return NotOffered(reason)
        return here.profile.unless_by_steps(Domain((1, 2, 4)))

    def flag_domain(self, flag: Flag, here: Here) -> Domain | None:
        """Return the flag's value, its halves down to 1, and twice of it; None without a number.

        Fewer batches to a step leave room for larger ones at the same samples per step.
        """
        own = flag.number
        if not own:
            return None
        halves = takewhile(lambda steps: steps >= 1, (own // 2**k for k in count()))
        return Domain(tuple(sorted({1, *halves, 2 * own})))


def _inexact(profile: Profile) -> Iterator[str]:
    """Yield, as clauses, why several batches would not make one exact step."""
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
