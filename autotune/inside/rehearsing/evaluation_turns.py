"""Try options of an evaluation loader in a program that runs, pass by pass."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from autotune.inside.data.feed import tensors_in
from autotune.program.config import KnobValue
from autotune.program.evaluation import EvaluationTrials, PassTrial
from autotune.program.profile import LoaderFacts

Options = Mapping[str, KnobValue]
OWN: Options = {}
LEAST_PASSES = 4  # after the choice: two pairs
MOST_PASSES = 12
WORTH_COMPARING = 0.95  # of the seconds of the program's own options


@dataclass
class _Tried:
    """What was seen of one set of options."""

    options: Options
    seconds: list[float] = field(default_factory=list)


class EvaluationTurns:
    """Takes turns between the program's own options and others, in whole passes.

    ``ShortEpochs`` calls it in the program's main thread. First each set of options gets some
    passes, whose batches must equal those of the program's own, bit for bit. Then the fastest one
    and the program's own take turns: those passes count.

    Args:
        facts: By which the loader is recognised, also where it is built anew for each pass.
        tries: The options to try.
        most: Number of passes that there is time for.
        is_within: Whether the passes come in the middle of training passes.

    Attributes:
        facts: The same.
        is_within: The same.
        options: The options of the next pass.
    """

    def __init__(
        self, facts: LoaderFacts, tries: Sequence[Options], most: int, *, is_within: bool = False
    ) -> None:
        self.facts = facts
        self.is_within = is_within
        self.options = OWN
        fitting = [n for n in range(len(tries), 0, -1) if _passes(tries[:n]) <= most]
        self._left = [_Tried(OWN), *map(_Tried, tries[: next(iter(fitting), 0)])]
        self._screened: list[_Tried] = []
        self._chosen = OWN
        self._turns: list[Options] = []
        self._passes: list[PassTrial] = []
        self._digest = 0
        self._own_digest: int | None = None
        self._refusal = "" if fitting else "there was no time to try others"
        if facts.iterable:
            self._refusal = "its dataset is iterable, and each worker may repeat all its samples"
        elif facts.twins > 1:
            self._refusal = "the program has several loaders that look like it"

    def batch(self, batch: Any) -> None:
        """Take in a batch, while batches are still compared."""
        if self._left:
            for tensor in tensors_in(batch):
                data = tensor.detach().cpu().contiguous().flatten().view(torch.uint8)
                self._digest = zlib.crc32(data.numpy().tobytes(), self._digest)

    def pass_ended(self, seconds: float) -> None:
        """Note how long a whole pass took, and choose the options of the next one."""
        if self.is_over:
            return
        digest, self._digest = self._digest, 0
        self._passes.append(PassTrial(self.options, seconds, is_chosen=not self._left))
        if self._left:
            self._screen(seconds, digest)
        elif len(self._turns) > 1:
            del self._turns[0]
        else:
            self._turns = [OWN, self._chosen, self._chosen, OWN]  # what drifts meets both alike
        if self.is_over:
            self.options = OWN
        else:
            self.options = self._left[0].options if self._left else self._turns[0]

    @property
    def is_over(self) -> bool:
        """Whether there is nothing more to compare."""
        return bool(self._refusal) or sum(p.is_chosen for p in self._passes) >= MOST_PASSES

    @property
    def found(self) -> EvaluationTrials:
        """What was tried so far."""
        return EvaluationTrials(self.facts, tuple(self._passes), self._refusal)

    def _screen(self, seconds: float, digest: int) -> None:
        tried = self._left[0]
        tried.seconds.append(seconds)
        if self._own_digest is None:
            self._own_digest = digest
        if digest != self._own_digest:
            if not tried.options:
                self._refusal = "its batches differ from pass to pass"
            del self._left[0]
        elif len(tried.seconds) >= _needed(tried.options):
            self._screened.append(self._left.pop(0))
        if not self._left and not self._refusal:
            self._choose()

    def _choose(self) -> None:
        own, *others = self._screened
        best = min(others, key=lambda tried: tried.seconds[-1], default=None)
        if best is None:
            self._refusal = "other options change its batches"
        elif best.seconds[-1] > WORTH_COMPARING * own.seconds[-1]:
            self._refusal = "no other option was faster"
        else:
            self._chosen = best.options
            self._turns = [OWN, self._chosen, self._chosen, OWN]


def _needed(options: Options) -> int:
    """Return the passes that options get before the choice.

    Two of the program's own show whether its batches stay the same. Workers that persist start in
    the first pass.
    """
    return 1 if options and not options.get("persistent_workers") else 2


def _passes(tries: Sequence[Options]) -> int:
    """Return the least passes in which some options can be tried."""
    return sum(map(_needed, (OWN, *tries))) + LEAST_PASSES
