"""Evaluation loaders: DataLoaders that train nothing, and options under which they load faster.

Their batches stay the same: only how they are loaded changes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from autotune.program.config import KnobValue
from autotune.program.profile import LoaderFacts

Options = Mapping[str, KnobValue]
TORCHS_PREFETCH = 2  # batches that torch lets each worker hold
PREFETCH = 2  # times the program's prefetch factor: more for batches that take unequal times


@dataclass(frozen=True)
class EvaluationLoader:
    """A loader of the program's evaluation, with the options that it is given.

    Attributes:
        facts: By which the loader is recognised.
        options: Values of the loader's knobs; those that are missing stay the program's.
    """

    facts: LoaderFacts
    options: Options


@dataclass(frozen=True)
class EvaluationPlan:
    """How options of an evaluation loader are tried.

    Attributes:
        cores: CPU cores that the program may use.
        pins: Whether batches are copied to a device.
        enough_s: Seconds after the start of the program from which no further pass begins.
        loop_s: Seconds of a whole training pass, as the search measured it; None if unknown.
        options: The only options to try; by default, those worth trying for the loader.
    """

    cores: int = 1
    pins: bool = False
    enough_s: float = 0.0
    loop_s: float | None = None
    options: Options | None = None

    def tries(self, facts: LoaderFacts) -> list[Options]:
        """Return the options to try for a loader."""
        if self.options is not None:
            return [self.options]
        return candidates(facts, self.cores, pins=self.pins)


@dataclass(frozen=True)
class PassTrial:
    """One whole pass over an evaluation loader.

    Attributes:
        options: What it was given; empty for the program's own options.
        seconds: Seconds of the pass, the start of the loader included.
        is_chosen: Whether it ran after the options to compare were chosen, so that it counts.
    """

    options: Options
    seconds: float
    is_chosen: bool = False


@dataclass(frozen=True)
class EvaluationTrials:
    """What a short run tried of its slowest evaluation loader.

    Attributes:
        loader: The loader; None if none can be recognised, or none is worth it.
        passes: The passes in order.
        refusal: Why nothing was tried, as a clause; empty if something was.
    """

    loader: LoaderFacts | None = None
    passes: tuple[PassTrial, ...] = ()
    refusal: str = ""

    @property
    def chosen(self) -> Options:
        """The options that were compared with the program's own; empty if none were."""
        return next((p.options for p in self.passes if p.is_chosen and p.options), {})

    @property
    def ratios(self) -> list[float]:
        """The speedups of the chosen options over the program's own, from neighbouring passes."""
        counting = [p for p in self.passes if p.is_chosen]
        return [
            (one.seconds / other.seconds) if other.options else (other.seconds / one.seconds)
            for one, other in zip(counting[::2], counting[1::2], strict=False)
        ]


@dataclass(frozen=True)
class EvaluationOutputs:
    """How outputs of an evaluation under a config differ from those as written.

    Both are of the same weights and the same batches.

    Attributes:
        changes: The knobs that act there, with their values.
        apart: Norm of the differences over the norm of the outputs as written.
        explained: How far apart the rounding of the coarser precision may bring them.
        batches: Batches that were compared.
    """

    changes: Options
    apart: float
    explained: float
    batches: int

    @property
    def is_explained(self) -> bool:
        """Whether rounding alone may be the reason."""
        return self.apart <= self.explained

    def __str__(self) -> str:
        changes = " ".join(f"{knob}={value}" for knob, value in self.changes.items())
        differ = (
            f"On the same weights and batches, evaluation's outputs under {changes} differ by "
            f"{100 * self.apart:.2g} % from those as written"
        )
        if self.is_explained:
            return f"{differ}, as rounding explains"
        return (
            f"{differ}, more than rounding explains ({100 * self.explained:.2g} %). Evaluate as "
            "written before you compare metrics"
        )


def candidates(facts: LoaderFacts, cores: int, *, pins: bool) -> list[Options]:
    """Return the options worth trying for an evaluation loader.

    Never its batch size: a metric may be a mean over batches.

    Args:
        facts: The loader as the program built it.
        cores: CPU cores that the program may use.
        pins: Whether batches are copied to a device.
    """
    few = max(1, min(2, cores))
    found: list[Options] = []
    if facts.num_workers:
        found.append({"num_workers": 0})
        if not facts.persistent_workers:
            found.append({"persistent_workers": True})
        if facts.num_workers != few:
            found.append({"num_workers": few, "persistent_workers": True})
    else:
        found.append({"num_workers": few, "persistent_workers": True})
        if cores > few:
            found.append({"num_workers": cores, "persistent_workers": True})
    if pins and not facts.pin_memory:
        found.append({**found[-1], "pin_memory": True})
        found.append({"pin_memory": True})
    deeper = PREFETCH * (facts.prefetch_factor or TORCHS_PREFETCH)
    found.append({"num_workers": few, "persistent_workers": True, "prefetch_factor": deeper})
    return found


def loader_key(facts: LoaderFacts) -> str:
    """Return by what a loader is told from others, in all runs of a program."""
    values = facts.dataset, facts.dataset_len, facts.batch_size, facts.sampler, facts.site
    return " ".join(map(str, values))
