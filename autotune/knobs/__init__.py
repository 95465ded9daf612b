"""The registry of knobs: every setting that autotune can change, by name.

A new knob is one class in this folder and one line in ``KNOBS`` below. Third-party packages
register knobs under the entry-point group ``autotune.knobs``. They should import from this module
only, because the other modules may move.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib.metadata import entry_points

from autotune.errors import UsageError, did_you_mean
from autotune.knobs.base import Here, Knob, Scope, Seams
from autotune.knobs.batch_size import AccumulationSteps, BatchSize
from autotune.knobs.devices import DdpOptions, Devices, FsdpOptions, SyncBatchnorm
from autotune.knobs.loader_options import (
    InOrder,
    Pinning,
    PrefetchFactor,
    Workers,
    WorkerStartMethod,
    WorkerThreads,
)
from autotune.knobs.memory import ActivationCheckpointing, CudaAllocator, KeepFreedMemory
from autotune.knobs.model_options import Compile, MemoryFormat, Optimizer
from autotune.knobs.precision import Precision
from autotune.knobs.program_names import EnvironmentVariable, ProgramFlag
from autotune.knobs.torch_flags import Attention, Cudnn, FlushDenormal, Threads
from autotune.machine.hardware import Hardware
from autotune.program.applied_config import AppliedConfig
from autotune.program.config import Config, KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.flags import KEYWORD, Flag
from autotune.program.may_change import MayChange
from autotune.program.profile import Profile
from autotune.program.program import LaunchPlan

__all__ = [
    "Config",
    "Domain",
    "Flag",
    "Hardware",
    "Here",
    "Knob",
    "KnobValue",
    "LaunchPlan",
    "MayChange",
    "NotOffered",
    "Profile",
    "Registry",
    "Scope",
    "Seams",
    "launch_plan_for",
    "parse_value",
    "registry",
    "unknown_knob",
]

# In the order in which people see them: the rows first, then what is hidden.
KNOBS: tuple[type[Knob], ...] = (
    Workers,
    Pinning,
    Threads,
    BatchSize,
    Precision,
    MemoryFormat,
    Cudnn,
    Optimizer,
    Attention,
    Compile,
    Devices,
    AccumulationSteps,
    ActivationCheckpointing,
    CudaAllocator,
    PrefetchFactor,
    InOrder,
    WorkerThreads,
    WorkerStartMethod,
    FlushDenormal,
    KeepFreedMemory,
    DdpOptions,
    SyncBatchnorm,
    FsdpOptions,
)


class Registry(Mapping[str, Knob]):
    """All knobs by name; iteration and ``len()`` cover the installed ones only.

    Names that belong to the user's program get a knob on demand: a flag (``--hidden``), a keyword
    of a function (``keyword.hidden``), an environment variable (``$KMP_BLOCKTIME``).
    """

    def __init__(self, installed: Mapping[str, Knob]) -> None:
        self._installed = installed

    def __getitem__(self, name: str) -> Knob:
        if name in self._installed:
            return self._installed[name]
        bare = name.removeprefix(KEYWORD)
        # A lone "-" or "--" is not a flag, and a lone "$" below is not a variable.
        if name.startswith("-") and name.strip("-"):
            return ProgramFlag(name)
        if bare != name and bare.isidentifier():
            return ProgramFlag(name)
        if name.startswith("$") and len(name) > 1:
            return EnvironmentVariable(name)
        raise KeyError(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._installed)

    def __len__(self) -> int:
        return len(self._installed)


def launch_plan_for(applied: AppliedConfig, plan: LaunchPlan) -> LaunchPlan:
    """Return the plan that starts a process under a config.

    Only knobs that act at the start of a process change the plan: through the program's own flag
    where the program has one for the knob, otherwise through ``Knob.launch()`` unless it is idle.
    """
    for name, value in applied.changes().items():
        knob, flag = registry()[name], applied.traits.flags.get(name)
        if flag is not None:
            # A ProgramFlag is named by a spelling of its flag, and its value is in its words.
            text = value if name in flag.spellings else knob.format_flag(value, flag)
            plan = plan.with_flag(flag, text)
        elif knob.is_active(applied.config):
            plan = knob.launch(value, plan)
    return plan


@cache
def registry() -> Registry:
    """Return the registry: autotune's knobs first, then those of installed packages.

    Raises:
        UsageError: An entry point is not a Knob class, or its name is already in use.
    """
    knobs: dict[str, Knob] = {knob.name: knob() for knob in KNOBS}
    for entry in entry_points(group="autotune.knobs"):
        knob_class = entry.load()
        if not (isinstance(knob_class, type) and issubclass(knob_class, Knob)):
            raise UsageError(
                f"The entry point '{entry.value}' of autotune.knobs is not a Knob class."
            )
        if knob_class.name in knobs:
            raise UsageError(
                f"The knob '{knob_class.name}' of '{entry.value}' exists already. Rename it."
            )
        knobs[knob_class.name] = knob_class()
    return Registry(knobs)


def unknown_knob(name: str) -> str:
    """Return what is wrong with a name that no knob has, as sentences that end with the mend."""
    usual = {flag: knob.name for knob in registry().values() for flag in knob.flag_names}
    hint, listed = did_you_mean(name, registry()), ", ".join(registry())
    if name in usual:  # people type what torch and many programs call it
        hint = f" Did you mean '{usual[name]}'?"
    return f"Unknown setting '{name}'.{hint or f' Settings: {listed}.'}"


def parse_value(name: str, raw: object, where: str) -> KnobValue:
    """Return a value of a knob as the user wrote it in an option or a file.

    Raises:
        UsageError: There is no such knob, or it does not take the value; *where* stands before it.
    """
    knob = registry().get(name)
    if knob is None:
        raise UsageError(f"{where}: {unknown_knob(name)}")
    try:
        return knob.parse(raw)
    except ValueError as error:
        raise UsageError(f"{where}: setting '{name}' {error}.") from error
