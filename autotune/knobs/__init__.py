"""The knobs: a family of one file per knob. A new one is a file and a line below."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.metadata import entry_points
from types import MappingProxyType

from autotune.errors import UsageError
from autotune.knobs.base import Knob, Scope
from autotune.knobs.batch_size import BatchSize
from autotune.knobs.channels_last import ChannelsLast
from autotune.knobs.compile import Compile
from autotune.knobs.cudnn_benchmark import CudnnBenchmark
from autotune.knobs.num_threads import NumThreads
from autotune.knobs.num_workers import NumWorkers
from autotune.knobs.pin_memory import PinMemory
from autotune.knobs.precision import Precision
from autotune.knobs.prefetch_factor import PrefetchFactor

__all__ = ["Knob", "Scope", "registry"]

OWN: tuple[type[Knob], ...] = (
    NumWorkers,
    PrefetchFactor,
    PinMemory,
    BatchSize,
    Precision,
    ChannelsLast,
    CudnnBenchmark,
    NumThreads,
    Compile,
)


@cache
def registry() -> Mapping[str, Knob]:
    """Return every knob by name: ours, then those of the entry-point group ``autotune.knobs``.

    Raises:
        UsageError: when an installed knob takes a name that is taken or is no Knob.
    """
    knobs: dict[str, Knob] = {knob.name: knob() for knob in OWN}
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
    return MappingProxyType(knobs)
