"""Worth: which configs may be recommended, what changes must gain, and the config without one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from statistics import NormalDist

from autotune.knobs import registry
from autotune.knobs.space.space import ResolvedSpace
from autotune.measurement.interval import LogRatio
from autotune.program.config import Config, KnobValue
from autotune.program.may_change import MayChange
from autotune.tuning.choosing.diagnosis import DEVICES

# What a change must gain, as a logarithm, to be recommended; twice that where it alters rounding
WORTH_A_CHANGE = 0.01
SURELY = 0.9  # probability that recommended changes make a config faster than their absence
NORMAL = NormalDist()
LATE = 0.5  # share of the time for trials left, from which on neighbours of the best come first


def may_win(
    space: ResolvedSpace, config: Config, guilty: Iterable[Mapping[str, KnobValue]]
) -> bool:
    """Return whether a config may be recommended.

    Configs without the user's fixed values, those that the space defers, and those that contain the
    changes that a comparison blamed are left out.
    """
    if config == space.baseline or space.defers(config):
        return False
    if any(changes.items() <= config.items() for changes in guilty):
        return False
    return not space.fixed or config == space.canonical(config.replace(**space.fixed))


def must_gain(knobs: Iterable[str]) -> float:
    """Return what changes of knobs must gain to be recommended, as a logarithm."""
    known = registry()
    exact = MayChange.NOTHING
    return sum(WORTH_A_CHANGE * (1 if exact.allows(known[knob].changes) else 2) for knob in knobs)


def is_worth(knobs: Iterable[str], gain: LogRatio, surely: float = SURELY) -> bool:
    """Return whether changes of knobs are worth recommending, by what they gain together."""
    return gain.value >= must_gain(knobs) and NORMAL.cdf(gain.value / gain.error) >= surely


def one_fewer(
    space: ResolvedSpace, config: Config, *, with_baseline: bool = False, of_all: bool = False
) -> Iterator[tuple[str, Config]]:
    """Yield each change of a config with the config that has one change fewer.

    Args:
        with_baseline: Whether the baseline may be among them.
        of_all: Whether the devices and values that the user fixed are taken back as well.
    """
    seen = {config} if with_baseline else {config, space.baseline}
    for knob in config.changes_from(space.baseline):
        if not of_all and (knob == DEVICES or knob in space.fixed):
            continue
        without = space.canonical(config.replace(**{knob: space.baseline[knob]}))
        if without not in seen:
            seen.add(without)
            yield knob, without
