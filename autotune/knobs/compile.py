"""The compile knob."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.config import KnobValue
from autotune.domain import Domain, NotOffered
from autotune.flags import Flag
from autotune.hardware import Hardware
from autotune.knobs.base import Knob, Scope
from autotune.profile import Profile

if TYPE_CHECKING:
    from autotune.inside.seams import Seams


class Compile(Knob):
    """torch.compile on the model, by mode; costs seconds to minutes at the start of each run."""

    name = "compile"
    scope = Scope.RESTART
    value_type = str
    choices = ("off", "default", "reduce-overhead", "max-autotune-no-cudagraphs")
    flag_names = ("compile", "torch_compile", "compile_model")

    def domain(self, hardware: Hardware, profile: Profile) -> Domain | NotOffered:
        """Return the modes that differ where a back end can run.

        Away from CUDA max-autotune tunes no more than the default does while weights change.
        """
        if profile.own_compile:
            return NotOffered("the program compiles its model itself")
        if profile.device == "cuda":
            return Domain(self.choices)
        if profile.device == "cpu" and not hardware.has_cxx_compiler:
            return NotOffered("compiling for the CPU needs a C++ compiler (install g++)")
        return Domain(("off", "default"))

    def refusal(
        self,
        value: KnobValue,
        hardware: Hardware,  # noqa: ARG002
        profile: Profile,
    ) -> str | None:
        """Return why CUDA graphs cannot be had."""
        if value == "reduce-overhead" and profile.device != "cuda":
            return f"reduce-overhead replays CUDA graphs; the model is on the {profile.device}"
        return None

    def current(self, profile: Profile) -> KnobValue:  # noqa: ARG002
        """Return off: a program that compiles is not offered this knob."""
        return "off"

    def by_flag(self, flag: Flag, hardware: Hardware, profile: Profile) -> Domain | None:
        """Return off and default for a switch, where a back end can run."""
        if not flag.is_truth or (profile.device == "cpu" and not hardware.has_cxx_compiler):
            return None
        return Domain(("off", "default"))

    def from_flag(self, flag: Flag) -> KnobValue:
        """Return whether the program compiles."""
        return "default" if flag.is_on else "off"

    def to_flag(self, value: KnobValue, flag: Flag) -> str:
        """Return how the program says so."""
        return flag.truth(is_on=value != "off")

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Have the root modules compiled once they are known."""
        seams.forward.compile_in(mode=None if value == "off" else str(value))
