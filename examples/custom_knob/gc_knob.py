"""A knob of your own: how often Python's garbage collector runs."""

from __future__ import annotations

import gc

from autotune.knobs import Domain, Here, Knob, KnobValue, MayChange, Profile, Seams


class GcThreshold(Knob):
    """New objects until Python's garbage collector looks for cycles."""

    name = "gc_threshold"
    value_type = int
    minimum = 1
    changes = MayChange.NOTHING  # of a training

    def domain(self, here: Here) -> Domain:
        """Return Python's own threshold, and rarer collections."""
        return Domain((10_000, 100_000)).including(self.current(here.profile))

    def current(self, profile: Profile) -> KnobValue:
        """Return Python's own: a script that sets another is not seen from here."""
        return gc.get_threshold()[0]

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Act inside the program, between two of its steps."""
        gc.set_threshold(int(value))
