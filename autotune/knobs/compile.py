"""The compile knob."""

from __future__ import annotations

from autotune.knobs.base import Here, Knob, Scope, Seams
from autotune.program.config import KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.flags import Flag
from autotune.program.profile import Profile


class Compile(Knob):
    """torch.compile on the model, by mode; costs seconds to minutes at the start of each run."""

    name = "compile"
    scope = Scope.RESTART
    value_type = str
    choices = ("off", "default", "reduce-overhead", "max-autotune-no-cudagraphs")
    flag_names = ("compile", "torch_compile", "compile_model")

    def domain(self, here: Here) -> Domain | NotOffered:
        """Return the modes that differ where a back end can run.

        Away from CUDA max-autotune tunes no more than the default does while weights change.
        """
        if here.profile.program_compile:
            return NotOffered("the program compiles its model itself")
        if here.profile.device == "cuda":
            return Domain(self.choices)
        if here.profile.device == "cpu" and not here.hardware.has_cxx_compiler:
            return NotOffered("compiling for the CPU needs a C++ compiler (install g++)")
        return Domain(("off", "default"))

    def refusal(
        self,
        value: KnobValue,
        here: Here,
    ) -> str | None:
        """Return why CUDA graphs cannot be had."""
        if value == "reduce-overhead" and here.profile.device != "cuda":
            return f"reduce-overhead replays CUDA graphs; the model is on the {here.profile.device}"
        return None

    def current(self, profile: Profile) -> KnobValue:
        """Return off: a program that compiles is not offered this knob."""
        return "off"

    def flag_domain(self, flag: Flag, here: Here) -> Domain | None:
        """Return off and default for a switch, where a back end can run."""
        if not flag.is_truth or (
            here.profile.device == "cpu" and not here.hardware.has_cxx_compiler
        ):
            return None
        return Domain(("off", "default"))

    def parse_flag(self, flag: Flag) -> KnobValue:
        """Return whether the program compiles."""
        return "default" if flag.is_on else "off"

    def format_flag(self, value: KnobValue, flag: Flag) -> str:
        """Return how the program says so."""
        return flag.truth(is_on=value != "off")

    def apply(self, value: KnobValue, seams: Seams) -> None:
        """Have the root modules compiled once they are known."""
        seams.compile(None if value == "off" else str(value))
