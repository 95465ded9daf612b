"""The malloc knob."""

from __future__ import annotations

from autotune.knobs.base import Here, Knob, Scope
from autotune.program.config import KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.profile import Profile
from autotune.program.program import LaunchPlan

SONAMES = {"jemalloc": "libjemalloc.so.2", "tcmalloc": "libtcmalloc.so.4"}


class Malloc(Knob):
    """The C library's memory allocator, or another that is installed: jemalloc, tcmalloc."""

    name = "malloc"
    scope = Scope.RESTART
    value_type = str
    choices = ("default", "jemalloc", "tcmalloc")

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return the installed ones, for programs whose tensors lie in this memory."""
        if here.profile.device != "cpu":
            return NotOffered(f"the model's tensors lie on the {here.profile.device} device")
        installed = [n for n, soname in SONAMES.items() if soname in here.hardware.libraries]
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
