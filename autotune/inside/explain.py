"""What acts inside a program that trains under a config: ``autotune run --explain``."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from operator import itemgetter

from autotune.inside.hubs.patches import Patches, Seam
from autotune.inside.seam_set import STEPS_UNTIL_ROOTS_ARE_KNOWN, SeamSet
from autotune.inside.steering import install
from autotune.program.applied_config import AppliedConfig


def explain(applied: AppliedConfig) -> list[str]:
    """Return the places of PyTorch that a training under a config replaces, and what acts there.

    The config is applied to this process, as ``autotune run`` applies it, and taken back.

    Args:
        applied: The config.

    Returns:
        Sentences of one line each: the settings, then one line for each place.
    """
    seams = install(applied)
    try:
        rows = sorted(_rows(seams), key=itemgetter(0))  # in one place the outermost first
    finally:
        seams.remove()
    changes = ", ".join(f"{knob}={value}" for knob, value in applied.changes().items())
    if not changes:
        return ["The program trains as it is written: nothing of PyTorch is replaced."]
    if not rows:
        return [f"{changes}: set once, before the program starts. No step runs through autotune."]
    wide = max(len(place) for place, _ in rows)
    return [
        f"{changes}. While the program trains, autotune acts at:",
        *(f"  {place:<{wide}}  {what}" for place, what in rows),
    ]


def _rows(seams: SeamSet) -> Iterator[tuple[str, str]]:
    """Yield the places that are replaced now, each with what acts there, the outermost first."""
    first = f"first {STEPS_UNTIL_ROOTS_ARE_KNOWN} steps only"
    passing = {id(seams.optimizer): f" ({first})", id(seams.by_hand): " (first step only)"}
    for place, hub in (
        ("torch.autograd.backward", seams.hubs.backward),
        ("steps of torch.optim", seams.hubs.steps),
        ("torch.save", seams.hubs.saving),
        ("torch.utils.data.DataLoader", seams.hubs.iterate),
    ):
        for listener in hub.listeners:
            yield place, _does(listener) + passing.get(id(listener), "")
    yield from _patched(seams)


def _patched(owner: object) -> Iterator[tuple[str, str]]:
    """Yield the places that the seams of an object replace, and the seams of these."""
    for part in vars(owner).values():
        if isinstance(part, Patches):
            yield from ((place, _does(owner)) for place in part.places)
        elif isinstance(part, Seam):
            yield from _patched(part)


def _does(seam: object) -> str:
    said = inspect.getdoc(type(seam)) or type(seam).__name__
    return said.splitlines()[0].rstrip(".")
