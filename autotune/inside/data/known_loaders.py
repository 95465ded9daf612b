"""Loaders told apart: which of the program's loaders is the one that was known to train."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from autotune.program.profile import LoaderFacts


class KnownLoaders:
    """Counts loaders with equal facts as they are built, and recognises the target among them.

    Args:
        target: The training loader, when it is known from an earlier run.
        program_knobs: Knobs that the program sets itself: the target may differ in these.

    Attributes:
        found_target: One was built that is the target.
    """

    def __init__(self, target: LoaderFacts | None, program_knobs: Sequence[str] = ()) -> None:
        self._own_knobs = program_knobs
        self._built: Counter[LoaderFacts] = Counter()
        self._twins: Counter[LoaderFacts] | None = None  # when training began
        self.target = None if target is None else self._identity(target)
        self.found_target = False

    def training_begins(self) -> None:
        """The program has built what it trains with, and may build it again for each epoch."""
        if self._twins is None:
            self._twins = self._built.copy()

    def built(self, facts: LoaderFacts) -> LoaderFacts:
        """Note a loader; return its facts with what tells it from others built before."""
        has_site = self.target is None or bool(self.target.site)
        facts = facts if has_site else replace(facts, site="")
        kind = self._kind(facts)
        facts = replace(facts, ordinal=self._built[kind])
        self._built[kind] += 1
        return facts

    def in_training(self, facts: LoaderFacts) -> LoaderFacts:
        """Return facts with what they tell it by, once training has begun."""
        if self._twins is None:
            return facts
        is_alone = len(self._sites(facts)) == 1  # then it is known by its facts, wherever it is
        twins = self._twins[self._kind(facts)]
        return replace(facts, site="" if is_alone else facts.site, twins=twins)

    def is_target(self, facts: LoaderFacts) -> bool:
        """Tell whether a loader with these facts is the target.

        A program may build its loaders again for each epoch: then the count alone differs.
        """
        if self.target is None:
            return False
        identity = self._identity(facts)
        site = identity.site or self.target.site
        if self._kind(replace(identity, site=self.target.site)) != self._kind(self.target):
            return False
        if site != self.target.site:  # one from elsewhere may train later, those known do not
            return self._twins is not None and site not in self._sites(self.target)
        is_later = self.found_target and identity.ordinal >= self.target.twins
        return is_later or identity.ordinal == self.target.ordinal

    def _kind(self, facts: LoaderFacts) -> LoaderFacts:
        """What twins have in common."""
        return replace(self._identity(facts), ordinal=0, twins=0)

    def _sites(self, facts: LoaderFacts) -> set[str]:
        """Where those with otherwise equal facts were built before training began."""
        kind = replace(self._kind(facts), site="")
        return {k.site for k in self._twins or () if replace(k, site="") == kind}

    def _identity(self, facts: LoaderFacts) -> LoaderFacts:
        """What a loader is known by from run to run."""
        blank: dict[str, Any] = {"batch_size": None, "num_workers": 0, "pin_memory": False}
        unnamed: dict[str, Any] = {"in_order": True, "start_method": "", "batch_sampler": ""}
        own: dict[str, Any] = {n: v for n, v in blank.items() if n in self._own_knobs}
        if {"num_workers", "prefetch_factor"} & set(self._own_knobs):
            own |= {"prefetch_factor": None, "persistent_workers": False}
        if "world_size" in self._own_knobs:
            own |= {"sampler": "", "has_batch_sampler": False, "drop_last": False}
        return replace(facts, is_rewrapped=False, **unnamed, **own)
