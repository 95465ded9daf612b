"""Recognise, among the program's loaders, the one that an earlier run saw train.

A rig that measures a config must know the training loader when the program builds it, before the
first step. Loaders are compared by their facts, by the place in the code that builds them, and by a
count among equal ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from autotune.program.profile import LoaderFacts


class KnownLoaders:
    """Counts loaders with equal facts as they are built, and recognises the target among them.

    ``BuiltLoaders`` calls it on the thread that builds or iterates a loader.

    Args:
        target: The training loader of an earlier run; None if it is not known yet.
        program_knobs: Knobs that the program sets itself; the target may differ in these.

    Attributes:
        target: The target, without what may differ from run to run.
        found_target: Whether a loader was built that is the target.
    """

    def __init__(self, target: LoaderFacts | None, program_knobs: Sequence[str] = ()) -> None:
        self._own_knobs = program_knobs
        self._built: Counter[LoaderFacts] = Counter()
        self._twins: Counter[LoaderFacts] | None = None  # counts when training began
        self.target = None if target is None else self._identity(target)
        self.found_target = False

    @property
    def has_training_begun(self) -> bool:
        """Whether ``training_begins()`` was called."""
        return self._twins is not None

    def training_begins(self) -> None:
        """Remember the counts as they are when training begins.

        The program may build its loaders again for each epoch, which must not count as more
        loaders.
        """
        if self._twins is None:
            self._twins = self._built.copy()

    def built(self, facts: LoaderFacts) -> LoaderFacts:
        """Count a new loader, and return its facts with its number among equal ones, from 0.

        If the target has no site, the site is left out of all facts.
        """
        # a target without a site is known by its facts alone
        has_site = self.target is None or bool(self.target.site)
        facts = facts if has_site else replace(facts, site="")
        kind = self._kind(facts)
        facts = replace(facts, ordinal=self._built[kind])
        self._built[kind] += 1
        return facts

    def in_training(self, facts: LoaderFacts) -> LoaderFacts:
        """Return facts with what identifies the loader in another run.

        Before training begins they are returned unchanged.
        """
        if self._twins is None:
            return facts
        is_alone = len(self._sites(facts)) == 1  # its facts suffice, even if the code moves
        twins = self._twins[self._kind(facts)]
        return replace(facts, site="" if is_alone else facts.site, twins=twins)

    def is_target(self, facts: LoaderFacts) -> bool:
        """Return whether a loader with these facts is the target; False without a target.

        A program may build its loaders again for each epoch. Only their number among equal ones
        differs then.
        """
        if self.target is None:
            return False
        identity = self._identity(facts)
        site = identity.site or self.target.site
        if self._kind(replace(identity, site=self.target.site)) != self._kind(self.target):
            return False
        if site != self.target.site:  # only a site that is new since training began
            return self._twins is not None and site not in self._sites(self.target)
        is_later = self.found_target and identity.ordinal >= self.target.twins
        return is_later or identity.ordinal == self.target.ordinal

    def _kind(self, facts: LoaderFacts) -> LoaderFacts:
        """Return the facts that loaders which look alike have in common, without the counts."""
        return replace(self._identity(facts), ordinal=0, twins=0)

    def _sites(self, facts: LoaderFacts) -> set[str]:
        """Return where loaders with otherwise equal facts were built before training began."""
        kind = replace(self._kind(facts), site="")
        return {k.site for k in self._twins or () if replace(k, site="") == kind}

    def _identity(self, facts: LoaderFacts) -> LoaderFacts:
        """Return the facts without those that may differ from run to run.

        Besides such facts, the options of knobs that the program sets itself are left out.
        """
        blank: dict[str, dict[str, Any]] = {
            "batch_size": {"batch_size": None},
            "workers": {"num_workers": 0, "prefetch_factor": None, "persistent_workers": False},
            "prefetch_factor": {"prefetch_factor": None, "persistent_workers": False},
            "pinning": {"pin_memory": False},
            "devices": {"sampler": "", "has_batch_sampler": False, "drop_last": False},
        }
        unnamed: dict[str, Any] = {"in_order": True, "start_method": "", "batch_sampler": ""}
        own: dict[str, Any] = {}
        for knob in self._own_knobs:
            own |= blank.get(knob, {})
        return replace(facts, is_rewrapped=False, **unnamed, **own)
