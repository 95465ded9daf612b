"""The loaders that the program has built: what each is, and which of them trains.

A rig that measures a config must know the training loader when the program builds it, before the
first step. It is recognised by its facts, by the place in the code that builds it, and by its
number among equal ones.

A loader without end, such as YOLO's ``InfiniteDataLoader``, wraps the batch sampler that PyTorch
made for it: the wrapper holds that ``BatchSampler`` in an attribute and iterates it repeatedly.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any
from weakref import WeakKeyDictionary

from torch.utils.data import BatchSampler, DataLoader, IterableDataset

from autotune.inside.code.structure import attributes
from autotune.inside.data.loader_options import start_method
from autotune.program.profile import LoaderFacts


@dataclass
class Built:
    """A loader that the program has built, and the objects that it gave the loader.

    Attributes:
        facts: The loader as it was built.
        is_rebuilt: It was built after training had begun.
        written: The program's values of the attributes that decide which samples a batch holds, as
            far as options have changed them; None for a loader that got no options.
        is_evaluated: The program began its latest pass over a loader with options without
            gradients, so it gets all samples even if training is sharded.
    """

    facts: LoaderFacts
    is_rebuilt: bool
    batch_sampler: Any
    timeout: float
    context: Any
    worker_init_fn: Callable[[int], None] | None
    written: dict[str, Any] | None = None
    is_evaluated: bool = False


class BuiltLoaders:
    """Knows every loader of the program, and which of them is to train.

    Args:
        target: The training loader, if it is known from an earlier run.
        program_knobs: Knobs that the program sets itself: the target may differ in these.
        recorded: Called after a loader has been recorded.

    Attributes:
        target: The target, without what may differ from run to run.
        found_target: Whether a loader was built that is the target.
    """

    def __init__(
        self,
        target: LoaderFacts | None,
        program_knobs: Sequence[str],
        recorded: Callable[[DataLoader[Any]], None],
    ) -> None:
        self._program_knobs = program_knobs
        self._recorded = recorded
        self._built: WeakKeyDictionary[DataLoader[Any], Built] = WeakKeyDictionary()
        self._counts: Counter[LoaderFacts] = Counter()
        self._counts_before_training: Counter[LoaderFacts] | None = None
        self.target = None if target is None else self._lasting(target)
        self.found_target = False

    def record(self, loader: DataLoader[Any], site: str) -> Built:
        """Record a loader that was built at this place of the program's code.

        Its facts get its number among equal ones, from 0. If the target has no site, the site is
        left out of all facts.
        """
        facts = replace(read_facts(loader), site=site)
        if self.target is not None and not self.target.site:
            facts = replace(facts, site="")
        kind = self._kind(facts)
        facts = replace(facts, ordinal=self._counts[kind])
        self._counts[kind] += 1
        self._built[loader] = built = Built(
            facts,
            self._counts_before_training is not None,
            loader.batch_sampler,
            loader.timeout,
            loader.multiprocessing_context,
            loader.worker_init_fn,
        )
        self.found_target = self.found_target or self._is_target(facts)
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

        After training has begun, they also hold what identifies the loader in another run: how many
        equal loaders were built until then, and the site unless the facts suffice.
        """
        built = self.of(loader)
        is_foreign = self.batches(loader) is None
        is_other = built.written is None and loader.batch_sampler is not built.batch_sampler
        has_sampler = loader.batch_sampler is not None and plain_batches(loader) is None
        facts = replace(
            built.facts,
            start_method=start_method(built.context),
            is_rewrapped=is_other and is_foreign,
            batch_sampler=type(loader.batch_sampler).__name__ if is_foreign and has_sampler else "",
        )
        if self._counts_before_training is None:
            return facts
        twins = self._counts_before_training[self._kind(facts)]
        is_alone = len(self._sites(facts)) == 1
        return replace(facts, site="" if is_alone else facts.site, twins=twins)

    def batches(self, loader: DataLoader[Any]) -> BatchSampler | None:
        """Return torch's BatchSampler that makes the loader's batches; None if there is not one.

        It may lie within a wrapper of the program's.
        """
        found, built = plain_batches(loader), self.get(loader)
        if built is None:
            return found
        if found is None and type(built.batch_sampler) is BatchSampler:
            _, found = _wrapped(loader.batch_sampler)
        # A batch sampler that the program has assigned later may draw from another sampler.
        return None if found is not built.batch_sampler and built.written is None else found

    def is_target(self, loader: DataLoader[Any]) -> bool:
        """Tell whether this is the training loader known from an earlier run."""
        built = self.get(loader)
        return built is not None and self._is_target(built.facts)

    def training_begins(self) -> None:
        """Note that the first step is about to begin: the program's loaders are built."""
        if self._counts_before_training is None:
            self._counts_before_training = self._counts.copy()

    def is_rebuilt(self, loader: DataLoader[Any]) -> bool:
        """Return whether a loader was built after training had begun."""
        built = self.get(loader)
        return self._counts_before_training is not None if built is None else built.is_rebuilt

    def _is_target(self, facts: LoaderFacts) -> bool:
        """Return whether a loader with these facts is the target; False without a target.

        Of loaders that are built again for each epoch, only the number among equal ones differs.
        """
        if self.target is None:
            return False
        identity = self._lasting(facts)
        site = identity.site or self.target.site
        if self._kind(replace(identity, site=self.target.site)) != self._kind(self.target):
            return False
        if site != self.target.site:  # only a site that is new since training began
            has_begun = self._counts_before_training is not None
            return has_begun and site not in self._sites(self.target)
        is_later = self.found_target and identity.ordinal >= self.target.twins
        return is_later or identity.ordinal == self.target.ordinal

    def _kind(self, facts: LoaderFacts) -> LoaderFacts:
        return replace(self._lasting(facts), ordinal=0, twins=0)

    def _sites(self, facts: LoaderFacts) -> set[str]:
        """Return where loaders with otherwise equal facts were built before training began."""
        kind = replace(self._kind(facts), site="")
        before = self._counts_before_training or ()
        return {other.site for other in before if replace(other, site="") == kind}

    def _lasting(self, facts: LoaderFacts) -> LoaderFacts:
        """Return the facts without those that may differ from run to run."""
        by_knob: dict[str, dict[str, Any]] = {
            "batch_size": {"batch_size": None},
            "workers": {"num_workers": 0, "prefetch_factor": None, "persistent_workers": False},
            "prefetch_factor": {"prefetch_factor": None, "persistent_workers": False},
            "pinning": {"pin_memory": False},
            "devices": {"sampler": "", "has_batch_sampler": False, "drop_last": False},
        }
        left_out: dict[str, Any] = {"is_rewrapped": False, "in_order": True, "start_method": ""}
        for knob in self._program_knobs:
            left_out |= by_knob.get(knob, {})
        return replace(facts, batch_sampler="", **left_out)


def plain_batches(loader: DataLoader[Any]) -> BatchSampler | None:
    """Return the loader's batch sampler if it is torch's own, which makes batches of one size."""
    sampler = loader.batch_sampler
    return sampler if type(sampler) is BatchSampler else None


def read_facts(loader: DataLoader[Any]) -> LoaderFacts:
    """Return a loader's facts as its attributes tell them.

    The length of the dataset is None if it has no length yet.
    """
    plain = plain_batches(loader)
    try:
        length = len(loader.dataset)  # type: ignore[arg-type]
    except Exception:  # noqa: BLE001 - a dataset's __len__ may fail until the program has set it up
        length = None
    return LoaderFacts(
        dataset=type(loader.dataset).__name__,
        dataset_len=length,
        batch_size=None if plain is None else plain.batch_size,
        num_workers=loader.num_workers,
        prefetch_factor=loader.prefetch_factor,
        pin_memory=bool(loader.pin_memory),
        persistent_workers=loader.persistent_workers,
        sampler=type(loader.sampler if plain is None else plain.sampler).__name__,
        has_batch_sampler=plain is None and loader.batch_sampler is not None,
        iterable=isinstance(loader.dataset, IterableDataset),
        drop_last=loader.drop_last if plain is None else plain.drop_last,
        in_order=loader.in_order,
        start_method=start_method(loader.multiprocessing_context),
    )


def rewrapped(sampler: Any, inner: Any) -> Any:
    """Return *inner* as the loader's batch sampler, in a copy of its wrapper if it has one."""
    name, present = _wrapped(sampler)
    if present is None:
        return inner
    if present is inner:
        return sampler
    copy = object.__new__(type(sampler))
    vars(copy).update(vars(sampler))
    vars(copy)[name] = inner
    return copy


def _wrapped(sampler: object) -> tuple[str, BatchSampler | None]:
    parts = {} if type(sampler) is BatchSampler else attributes(sampler) or {}
    held = [(name, part) for name, part in parts.items() if type(part) is BatchSampler]
    return held[0] if len(held) == 1 else ("", None)
