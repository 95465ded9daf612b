"""Give loaders of the program's evaluation other options, so that they yield the same batches."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from torch.utils.data import DataLoader, IterableDataset

from autotune.inside.data.known_loaders import KnownLoaders
from autotune.program.config import KnobValue
from autotune.program.evaluation import EvaluationLoader
from autotune.program.profile import LoaderFacts

Choose = Callable[[DataLoader[Any]], Mapping[str, KnobValue]]
Attributes = Callable[[DataLoader[Any], Mapping[str, KnobValue]], dict[str, Any]]


class EvaluationLoaders:
    """Recognises the evaluation loaders that get options, and makes their changed copies.

    The loader seam owns one and calls it on the thread that builds or iterates a loader. Copies are
    kept by their options, so that persistent workers of one stay while another one is iterated.

    Args:
        attributes: Returns the attributes of a loader under options.
    """

    def __init__(self, attributes: Attributes) -> None:
        self._attributes = attributes
        self._choose: Choose | None = None
        self._given: list[tuple[KnownLoaders, Mapping[str, KnobValue]]] = []
        self._options: WeakKeyDictionary[DataLoader[Any], Mapping[str, KnobValue]] = (
            WeakKeyDictionary()
        )
        self._copies: WeakKeyDictionary[DataLoader[Any], dict[str, DataLoader[Any]]] = (
            WeakKeyDictionary()
        )

    def give(self, loaders: tuple[EvaluationLoader, ...]) -> None:
        """Give loaders their options when they are built; called before the program starts."""
        self._given = [(KnownLoaders(one.facts), one.options) for one in loaders]

    @property
    def is_given(self) -> bool:
        """Whether some loader gets options when it is built."""
        return bool(self._given)

    def choose_by(self, choose: Choose) -> None:
        """Ask a function for a loader's options before each pass; none of them means its own."""
        self._choose = choose

    def training_begins(self) -> list[str]:
        """Note that the first step is about to begin; return a sentence for each missing loader.

        Only those are missed that the searched program had built by then.
        """
        missing = []
        for known, options in self._given:
            known.training_begins()
            target = known.target
            if target is not None and target.twins and not known.found_target:
                missing.append(
                    f"no DataLoader here is the one of the evaluation that was tuned "
                    f"({target.dataset} of {target.dataset_len} samples), so {', '.join(options)} "
                    "were not applied to it. Search again for this program and data."
                )
        return missing

    def built(self, loader: DataLoader[Any], facts: LoaderFacts) -> None:
        """Recognise a loader that was built."""
        for known, options in self._given:
            own = known.built(facts)
            if known.is_target(own):
                known.found_target = True
                self._options[loader] = options

    def variant(self, loader: DataLoader[Any]) -> DataLoader[Any]:
        """Return a copy of a loader under its options; itself if it has none."""
        options = self._options.get(loader) if self._choose is None else self._choose(loader)
        # Each worker of an iterable dataset may repeat all its samples
        if not options or isinstance(loader.dataset, IterableDataset):
            return loader
        copies = self._copies.setdefault(loader, {})
        key = repr(sorted(options.items()))
        if key not in copies:
            copies[key] = object.__new__(type(loader))
            vars(copies[key]).update({**vars(loader), "_iterator": None})
        copy = copies[key]
        # As the loader is now: the program may have replaced its dataset, which workers that
        # persist do not notice
        is_same = vars(copy)["dataset"] is loader.dataset
        iterator = vars(copy)["_iterator"] if is_same else None
        changes = self._attributes(loader, options)
        vars(copy).update({**vars(loader), **changes, "_iterator": iterator})
        return copy
