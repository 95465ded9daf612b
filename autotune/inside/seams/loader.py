"""The seam at the DataLoader: identifies loaders, changes their options and observes their batches.

Every DataLoader that is built is recorded with its facts. The one that trains gets the options of
the config, either when it is built or as a changed copy that the feed iterates. Loaders of other
libraries are not covered here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch.utils.data import DataLoader

from autotune.inside.code.frames import site
from autotune.inside.data.feed import Feed, Resting, die_with_parent
from autotune.inside.data.loader_options import RequestedOptions, with_attributes
from autotune.inside.data.loader_variants import LoaderShares, LoaderSizes, LoaderVariants
from autotune.inside.data.loaders import BuiltLoaders
from autotune.inside.data.workers import Workers
from autotune.inside.hubs.iterate import IterateHub, IterateListener
from autotune.inside.listener import Listener
from autotune.inside.ranks.group import Group
from autotune.inside.seams.accumulation import AccumulationSeam
from autotune.program.profile import LoaderFacts

# The attributes that decide which samples a batch holds. The program's values are kept, because a
# loop without gradients (an evaluation) gets all samples even if training is sharded.
DATA = ("dataset", "sampler", "batch_sampler", "batch_size")


class LoaderSeam(IterateListener):
    """Knows every DataLoader of the program and gives the training loader its options.

    A loader that equals *target* gets the options when it is built, so ``len(loader)`` and all
    values that the program derives from it are true. In a running program the feed asks for a
    changed copy instead.

    ``Steering`` requests options on the main thread; the hub and ``Feed`` call its parts on
    whatever thread the program iterates, which may be a background thread.
    """

    def __init__(
        self,
        hub: IterateHub,
        listener: Listener | None,
        accumulation: AccumulationSeam,
        target: LoaderFacts | None,
        program_knobs: Sequence[str] = (),
        fed: Callable[..., None] = lambda **_: None,
    ) -> None:
        self._hub = hub
        self._is_measured = listener is not None
        self.workers = Workers()
        self.built = BuiltLoaders(target, program_knobs, self._recorded)
        self.options = RequestedOptions()
        self.shares = LoaderShares(self.built)
        self.sizes = LoaderSizes(hub.length, self.built, self.shares)
        self.variants = LoaderVariants(self.built, self.options, self.shares)
        self.passes = Passes(self, hub, listener, accumulation, fed)

    def install(self) -> None:
        """Follow the program's loaders, and their passes if needed."""
        if self._is_measured:
            die_with_parent(lambda: self._hub.is_beginning)
        self._hub.join(self)
        if self.passes.is_needed:
            self._hub.join(self.passes)

    def loader_built(self, loader: DataLoader[Any]) -> None:
        """Record a loader, and give it the options if it is the one that trains."""
        self.built.record(loader, site())

    def _recorded(self, loader: DataLoader[Any]) -> None:
        if self._is_measured or "num_workers" in self.options.values:
            self.workers.built(loader)
        if self.built.is_target(loader):
            changes = self.variants.changes(loader)
            written = {name: vars(loader)[name] for name in DATA if name in changes}
            self.built.of(loader).written = written
            vars(loader).update(changes)

    def share(self, group: Group, begins: Callable[[], None]) -> None:
        """Give each rank its part of the training loader's data, until the process ends."""
        self.shares.group, self.shares.begins = group, begins
        self.options.request(world_size=group.world_size)

    @property
    def misses_target(self) -> bool:
        """Whether options were requested but the loader that they are for was not built."""
        is_known = self.built.target is not None
        return is_known and bool(self.options.values) and not self.built.found_target

    def describe_missing_target(self) -> str:
        """Return a sentence that says which loader was not found and what was not applied."""
        target = self.built.target
        assert target is not None, "only a known target can be missed"
        return (
            f"no DataLoader here is the one that was tuned ({target.dataset} of "
            f"{target.dataset_len} samples, batch size {target.batch_size}), so "
            f"this does not act: {', '.join(self.options.settings)}. "
            "Search again for this program and data."
        )


class Passes(IterateListener):
    """Begins the program's passes over its loaders, with the options of the config."""

    def __init__(
        self,
        seam: LoaderSeam,
        hub: IterateHub,
        listener: Listener | None,
        accumulation: AccumulationSeam,
        fed: Callable[..., None],
    ) -> None:
        self.built, self.options = seam.built, seam.options
        self.sizes, self.variants = seam.sizes, seam.variants
        self.resting = Resting()
        self.replays = False
        self._shares, self._workers = seam.shares, seam.workers
        self._hub = hub
        self._listener = listener
        self._accumulation = accumulation
        self._fed = fed

    @property
    def is_needed(self) -> bool:
        """Whether somebody measures batches, steps are made of other samples, or workers differ."""
        has_workers = "num_workers" in self.options.values
        return self._listener is not None or self._changes_steps or has_workers

    @property
    def _changes_steps(self) -> bool:
        """Whether a step may use other samples than the program's own steps do."""
        more = self._accumulation.steps > 1 or "batch_size" in self.options.values
        return more or self._shares.group.world_size > 1

    def iterator_of(self, loader: DataLoader[Any]) -> Iterator[Any]:
        """Return a feed that reports to the listener; without one, the loader's batches."""
        if self._listener is not None:
            return Feed(loader, self, self._listener)
        return self._in_groups(loader)

    def length_of(self, loader: DataLoader[Any]) -> int:
        """Return a loader's batches: its share of them, or all while it evaluates."""
        built = self.built.get(loader)
        is_whole = built is not None and built.is_evaluated
        batches = self._hub.length(self._as_written(loader) if is_whole else loader)
        # A length read for evaluation does not tell how long a training pass is.
        if torch.is_grad_enabled():
            self.sizes.read[loader] = batches
        return batches

    def begin(self, loader: DataLoader[Any], written: DataLoader[Any]) -> Iterator[Any]:
        """Return PyTorch's iterator over a loader, called when a pass over its data begins.

        If gradients are disabled, the program evaluates: the iterator then yields all samples in
        the program's own batches, although training may be sharded.
        """
        built = self.built.get(loader)
        if built is not None and built.written is not None:
            built.is_evaluated = not torch.is_grad_enabled()
            if built.is_evaluated:
                return self._hub.begin(self._as_written(loader))
        if self._shares.divides(loader):
            self._shares.begins()
        return self._workers.begin(loader, written, self.built.facts(written), self._hub.begin)

    def hand_out(
        self, loader: DataLoader[Any], number: int, iteration: object = None, *, trains: bool
    ) -> None:
        """Note that a batch is handed to the program.

        Tells the rates seam whose batch the next step uses, and accumulation where its groups of
        micro-batches begin. A batch that is read with gradients disabled feeds no optimizer, so the
        rates seam is not told of it.
        """
        if torch.is_grad_enabled():
            self._fed(by_target=trains)
        if trains and self._accumulation.steps > 1:
            self._accumulation.groups.hand_out(number, self.sizes.epoch_of(loader), iteration)

    def _in_groups(self, loader: DataLoader[Any]) -> Iterator[Any]:
        if (built := self.built.get(loader)) is None:  # built before autotune: left as it is
            return self._hub.begin(loader)
        batches = self.begin(loader, loader)
        if not self._changes_steps or built.is_evaluated:
            return batches
        return self._noted(loader, batches)

    def _noted(self, loader: DataLoader[Any], batches: Iterator[Any]) -> Iterator[Any]:
        trains, iteration = self.built.is_target(loader), object()
        try:
            for number, batch in enumerate(batches, start=1):
                self.hand_out(loader, number, iteration, trains=trains)
                yield batch
        finally:  # also if the program leaves its loop early
            self._accumulation.groups.end(iteration)

    def _as_written(self, loader: DataLoader[Any]) -> DataLoader[Any]:
        return with_attributes(loader, self.built.of(loader).written or {})
