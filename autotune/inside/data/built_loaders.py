"""The loaders that the program has built, with what it gave them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

from torch.utils.data import BatchSampler, DataLoader

from autotune.inside.data.known_loaders import KnownLoaders
from autotune.inside.data.loader_facts import (
    foreign_sampler,
    inner_batches,
    plain_batches,
    read_facts,
)
from autotune.inside.data.loader_options import ProgramOptions, start_method
from autotune.program.profile import LoaderFacts


@dataclass
class Built:
    """A loader that the program has built.

    Attributes:
        facts: The loader as it was built.
        given: Objects that the program gave it.
        is_rebuilt: It was built after training had begun.
        written: The program's values of the attributes that decide which samples a batch holds, as
            far as options have changed them; None for a loader that got no options.
        is_evaluated: The program began its latest pass over a loader with options without
            gradients, so it gets all samples even if training is sharded.
    """

    facts: LoaderFacts
    given: ProgramOptions
    is_rebuilt: bool
    written: dict[str, Any] | None = None
    is_evaluated: bool = False


class BuiltLoaders:
    """Knows every loader of the program, and which of them is to train.

    It is asked on the thread that builds or iterates a loader.

    Args:
        target: The training loader, if it is known from an earlier run.
        program_knobs: Knobs that the program sets itself: the target may differ in these.
        recorded: Called after a loader has been recorded.
    """

    def __init__(
        self,
        target: LoaderFacts | None,
        program_knobs: Sequence[str],
        recorded: Callable[[DataLoader[Any]], None],
    ) -> None:
        self._known = KnownLoaders(target, program_knobs)
        self._recorded = recorded
        self._built: WeakKeyDictionary[DataLoader[Any], Built] = WeakKeyDictionary()

    def record(self, loader: DataLoader[Any], site: str) -> Built:
        """Record a loader that was built at this place of the program's code."""
        facts = self._known.built(replace(read_facts(loader), site=site))
        given = ProgramOptions(
            loader.batch_sampler,
            loader.timeout,
            loader.multiprocessing_context,
            loader.worker_init_fn,
        )
        self._built[loader] = built = Built(facts, given, self._known.has_training_begun)
        if self._known.is_target(facts):
            self._known.found_target = True
        self._recorded(loader)
        return built

    def get(self, loader: DataLoader[Any]) -> Built | None:
        """Return what is known of a loader; None if it was built before loaders were recorded."""
        return self._built.get(loader)

    def of(self, loader: DataLoader[Any]) -> Built:
        """Return what is known of a loader; one that was built before is recorded now."""
        return self._built.get(loader) or self.record(loader, "")

    def facts(self, loader: DataLoader[Any]) -> LoaderFacts:
        """Return a loader's facts, with the options that the program gave it.

        After training has begun, they also tell how many equal loaders were built until then.
        """
        built = self.of(loader)
        is_foreign = self.batches(loader) is None
        is_other = built.written is None and loader.batch_sampler is not built.given.batch_sampler
        facts = replace(
            built.facts,
            start_method=start_method(built.given.context),
            is_rewrapped=is_other and is_foreign,
            batch_sampler=foreign_sampler(loader) if is_foreign else "",
        )
        return self._known.in_training(facts)

    def batches(self, loader: DataLoader[Any]) -> BatchSampler | None:
        """Return torch's BatchSampler that makes the loader's batches; None if there is not one.

        It may be the loader's batch sampler, or lie within a wrapper of the program's that goes
        through it again and again.
        """
        found, built = plain_batches(loader), self.get(loader)
        if built is None:
            return found
        given = built.given.batch_sampler
        if found is None and type(given) is BatchSampler:
            found = inner_batches(loader.batch_sampler)
        # A batch sampler that the program has assigned later may draw from another sampler.
        return None if found is not given and built.written is None else found

    def is_target(self, loader: DataLoader[Any]) -> bool:
        """Tell whether this is the training loader known from an earlier run."""
        built = self.get(loader)
        return built is not None and self._known.is_target(built.facts)

    @property
    def target(self) -> LoaderFacts | None:
        """The training loader as an earlier run knew it; None without one."""
        return self._known.target

    @property
    def found_target(self) -> bool:
        """Whether the program has built the loader that was known to train."""
        return self._known.found_target

    def training_begins(self) -> None:
        """Note that the first step is about to begin: the program's loaders are built.

        Equal loaders that are built later are taken for rebuilt ones, as a program may build its
        loaders anew for each epoch.
        """
        self._known.training_begins()

    def is_rebuilt(self, loader: DataLoader[Any]) -> bool:
        """Return whether a loader was built after training had begun."""
        built = self.get(loader)
        return self._known.has_training_begun if built is None else built.is_rebuilt
