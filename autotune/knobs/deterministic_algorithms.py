"""The knob ``deterministic_algorithms``: whether PyTorch may use nondeterministic kernels.

It covers cuDNN's own switch as well.

Source: PyTorch documentation, "Reproducibility" (``torch.use_deterministic_algorithms``,
``torch.backends.cudnn.deterministic``).
"""

from __future__ import annotations

from autotune.knobs.base import Here, ProcessSwitch
from autotune.program.domain import Domain, NotOffered


class DeterministicAlgorithms(ProcessSwitch):
    """Kernels that give the same bits in every run, usually slower; searched only if you name it.

    Turning them off can speed up a program that has them on, at the price of bitwise
    reproducibility.

    It acts on torch and cuDNN. Switched back on, they are as strict as the program had them:
    PyTorch's ``warn_only`` warns about a nondeterministic kernel instead of failing.
    """

    name = "deterministic_algorithms"
    value_type = bool

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return both values only to users who name the knob.

        A program that requests deterministic kernels wants reproducible runs, so a search must not
        turn them off on its own account.
        """
        if not here.profile.settings.deterministic_algorithms:
            return NotOffered("they are off")
        return NotOffered(
            f"the program asks for them; --tune {self.name} tries it without",
            by_name=Domain((False, True)),
        )
