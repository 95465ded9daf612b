"""A batch so large that learning needs a warm-up, or another optimizer."""

from __future__ import annotations

from collections.abc import Iterator

from autotune.program.profile import Profile
from autotune.results.advice.base import Advice, Readings

# Up to about 8,000 samples of ImageNet, a warm-up is enough (Goyal et al. 2017); beyond, rates per
# layer were needed (LARS: You et al. 2017; LAMB: You et al. 2020).
LARGE, VERY_LARGE = 2048, 8192
FEW_STEPS = 50  # in an epoch
PER_LAYER = frozenset({"LARS", "LAMB", "Lars", "Lamb", "FusedLAMB", "LARC"})


def large_batch(readings: Readings) -> Iterator[Advice]:
    """Say that a large batch trains at its full rate from the first step on."""
    profile = readings.profile
    samples = readings.measurement.samples_per_step
    families = {name for optimizer in profile.optimizers for name in optimizer.families}
    if samples < LARGE or families & PER_LAYER:
        return
    loader = profile.training_loader
    steps = loader.dataset_len / samples if loader is not None and loader.dataset_len else None
    is_extreme = samples >= VERY_LARGE or (steps is not None and steps < FEW_STEPS)
    if not is_extreme or (_warms_up(profile) and samples < VERY_LARGE):
        return
    few = f", so an epoch has {steps:,.0f} steps" if steps is not None else ""
    warm = "" if _warms_up(profile) else " and the learning rate has no warm-up"
    yield Advice(
        "large batch",
        "Steps are so large that training may need a warm-up, or rates per layer.",
        f"A step takes {samples:,.0f} samples{few}{warm}.",
        "Warm the learning rate up over the first epochs; beyond about 8,000 samples try LARS or "
        "LAMB.",
    )


def _warms_up(profile: Profile) -> bool:
    """Return whether rates are below those that the program set."""
    return any(
        now < initial
        for optimizer in profile.optimizers
        for now, initial in zip(optimizer.lrs, optimizer.initial_lrs, strict=False)
    )
