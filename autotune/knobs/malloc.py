"""The malloc knob."""

from __future__ import annotations

from autotune.config import KnobValue
from autotune.domain import Domain, NotOffered
from autotune.hardware import Hardware
from autotune.knobs.base import Knob, Scope
from autotune.profile import Profile
from autotune.program import LaunchPlan

SONAMES = {"jemalloc": "libjemalloc.so.2", "tcmalloc": "libtcmalloc.so.4"}


class Malloc(Knob):
    """The C library's memory allocator, or another that is installed: jemalloc, tcmalloc."""

    name = "malloc"
    scope = Scope.RESTART
    value_type = str
    choices = ("default", "jemalloc", "tcmalloc")

    def domain(self, hardware: Hardware, profile: Profile) -> Domain | NotOffered:
        """Return the installed ones, for programs whose tensors lie in this memory."""
        if profile.device != "cpu":
            return NotOffered(f"the model's tensors lie on the {profile.device} device")
        installed = [n for n, soname in SONAMES.items() if soname in hardware.libraries]
        if not installed:
            return NotOffered("neither jemalloc nor tcmalloc is installed (libjemalloc2)")
        return Domain(("default", *installed))

    def current(self, profile: Profile) -> KnobValue:
        """Return the one that is preloaded already."""
        preloaded = (n for n, soname in SONAMES.items() if soname in profile.preloaded)
        return next(preloaded, "default")

    def launch(self, value: KnobValue, plan: LaunchPlan) -> LaunchPlan:
        """Preload it, or take the others away."""
        kept = [lib for lib in plan.variable("LD_PRELOAD").split() if not _is_malloc(lib)]
        soname = SONAMES.get(str(value))
        return plan.with_env(LD_PRELOAD=" ".join([*kept, soname] if soname else kept))


def _is_malloc(library: str) -> bool:
    return any(soname in library for soname in SONAMES.values())
