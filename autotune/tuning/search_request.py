"""SearchRequest: what a user wants searched, before it is checked and resolved."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from autotune.errors import UsageError, did_you_mean
from autotune.knobs.space import spacefile
from autotune.knobs.space.space import SearchSpace
from autotune.measurement.goal import Goal, Objective
from autotune.program.fence_options import STRONGEST, FenceOptions
from autotune.program.flags import KEYWORD
from autotune.program.lr import LrRule
from autotune.results.record import SearchOptions
from autotune.tuning.budget import parse_duration
from autotune.tuning.choosing.sampler import make_sampler


@dataclass(frozen=True)
class SearchRequest:
    """The arguments of ``autotune.search()`` that do not concern the program, as they were given.

    They are described at ``autotune.search()``. ``space_searched()`` and ``options()`` check them.
    """

    space: str | SearchSpace = "default"
    budget: str | float = "3m"
    tune: Iterable[str] | None = None
    fix: Mapping[str, object] | None = None
    values: Mapping[str, Iterable[object]] | None = None
    arg: Mapping[str, Iterable[object]] = field(default_factory=dict)
    auto_arg: bool = False
    env: Mapping[str, Iterable[object]] = field(default_factory=dict)
    lr_rule: str | None = None
    keep_global_batch: bool = False
    max_global_batch: int | None = None
    objective: str = "throughput"
    max_memory: str | float | None = None
    for_hours: float | None = None
    accept_learning_change: bool = False
    check_learning: bool = False
    sampler: str = "autotune"
    seed: int = 0
    fence: FenceOptions = STRONGEST

    def space_searched(self) -> SearchSpace:
        """Return the space with everything that the user narrowed or added.

        Raises:
            UsageError: a knob or a value does not exist, or two wishes contradict each other.
        """
        space = self.space if isinstance(self.space, SearchSpace) else spacefile.load(self.space)
        if self.tune is not None:
            space = space.tune(self.tune)
        if self.values:
            space = space.with_values(self.values)
        if self.fix:
            space = space.fix(self.fix)
        if self.keep_global_batch:
            space = space.keep_global_batch()
        space = space.with_values(self._values_of_the_program())
        if self.auto_arg:
            space = space.use_flags()
        return space.up_to_global_batch(self.max_global_batch)

    def options(self) -> SearchOptions:
        """Return budget, learning-rate rule, sampler, seed, fence and goal.

        Raises:
            UsageError: the budget cannot be read as a duration, a limit makes no sense, or there is
                no such rule, sampler or objective.
        """
        make_sampler(self.sampler, self.seed)  # fails now, not after the baseline
        return SearchOptions(
            budget_s=seconds_of(self.budget),
            lr_rule=self._rule(),
            seed=self.seed,
            sampler=self.sampler,
            fence=self.fence,
            goal=Goal(self._objective(), share_of(self.max_memory), self._hours()),
            accepts_learning_change=self.accept_learning_change,
            checks_learning=self.check_learning,
        )

    def _objective(self) -> Objective:
        try:
            return Objective(self.objective)
        except ValueError as error:
            raise UsageError(
                f"There is no objective '{self.objective}'. Objectives are: {', '.join(Objective)}."
                f"{did_you_mean(self.objective, [*Objective])}"
            ) from error

    def _hours(self) -> float | None:
        if self.for_hours is not None and self.for_hours <= 0:
            raise UsageError(f"--for-hours takes hours of training, not {self.for_hours:g}.")
        return self.for_hours

    def _values_of_the_program(self) -> dict[str, Iterable[object]]:
        """Return candidate values for the program's flags, keywords and variables, by knob name."""
        flags = {
            name if name.startswith("-") else KEYWORD + name: values
            for name, values in self.arg.items()
        }
        return {**flags, **{f"${name}": values for name, values in self.env.items()}}

    def _rule(self) -> LrRule | None:
        if self.lr_rule is None:
            return None
        try:
            return LrRule(self.lr_rule)
        except ValueError as error:
            rules = ", ".join(LrRule)
            raise UsageError(
                f"There is no learning-rate rule '{self.lr_rule}'. Rules are: {rules}."
            ) from error


def share_of(memory: str | float | None) -> float | None:
    """Return a share of the memory, 0 to 1, which may be given as text such as ``"90%"``.

    Raises:
        UsageError: It is not a share.
    """
    if memory is None:
        return None
    text = str(memory).strip()
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = math.nan
    if not 0 < share <= 1:
        raise UsageError(f"'{memory}' is not a share of the memory. Write for example 90% or 0.9.")
    return share


def seconds_of(budget: str | float) -> float:
    """Return a budget in seconds, which may be given as text such as ``"3m"``."""
    return parse_duration(budget) if isinstance(budget, str) else float(budget)
