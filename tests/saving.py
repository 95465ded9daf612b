"""Runs a seam that acts where a program saves."""

from collections.abc import Iterator
from contextlib import contextmanager

from autotune.inside.hubs.saving import SaveHub
from autotune.inside.seams.guard import GuardSeam


@contextmanager
def installed(seam: GuardSeam) -> Iterator[None]:
    """Let a seam act, with a hub for it alone."""
    saving = SaveHub()
    saving.join(seam)
    seam.install()
    try:
        yield
    finally:
        seam.remove()
        saving.remove()
