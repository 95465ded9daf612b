"""The knob ``malloc``: the memory allocator that is preloaded into the program.

Source: PyTorch tutorials, "Performance Tuning Guide" (jemalloc, TCMalloc on CPUs).
"""

from __future__ import annotations

from autotune.knobs.base import Here, Knob, Scope
from autotune.program.config import KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.profile import Profile
from autotune.program.program import LaunchPlan

# Sonames, so that the dynamic loader finds the libraries without a path.
SONAMES = {"jemalloc": "libjemalloc.so.2", "tcmalloc": "libtcmalloc.so.4"}


class Malloc(Knob):
    """Memory allocator of the process: the C library's, jemalloc or tcmalloc.

    It helps CPU training that allocates and frees many tensors, because these allocators keep freed
    memory for reuse. The process may hold more memory. The allocator must be installed; it is
    loaded through ``LD_PRELOAD``.
    """

    name = "malloc"
    scope = Scope.RESTART  # LD_PRELOAD acts when a process starts
    value_type = str
    choices = ("default", "jemalloc", "tcmalloc")

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return the C library's allocator and the installed ones, for a model on the CPU.

        On a GPU, PyTorch's own caching allocator manages the tensors.
        """
        if here.profile.device != "cpu":
            return NotOffered(f"the model's tensors lie on the {here.profile.device} device")
        installed = [n for n, soname in SONAMES.items() if soname in here.hardware.libraries]
        if not installed:
            return NotOffered("neither jemalloc nor tcmalloc is installed (libjemalloc2)")
        return Domain(("default", *installed))

    def current(self, profile: Profile) -> KnobValue:
        """Return the allocator that the program's environment already preloads."""
        preloaded = (n for n, soname in SONAMES.items() if soname in profile.allocators.preloaded)
        return next(preloaded, "default")

    def launch(self, value: KnobValue, plan: LaunchPlan) -> LaunchPlan:
        """Add the allocator to ``LD_PRELOAD`` and remove the others; other libraries in it stay."""
        # The user may preload other libraries, which must stay.
        kept = [lib for lib in plan.variable("LD_PRELOAD").split() if not _is_malloc(lib)]
        soname = SONAMES.get(str(value))
        return plan.with_env(LD_PRELOAD=" ".join([*kept, soname] if soname else kept))


def _is_malloc(library: str) -> bool:
    return any(soname in library for soname in SONAMES.values())
