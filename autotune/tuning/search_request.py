"""SearchRequest: what a user wants searched, before it is checked and resolved."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from autotune.errors import UsageError
from autotune.knobs.space import spacefile
from autotune.knobs.space.space import SearchSpace
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
        """Return budget, learning-rate rule, sampler, seed and fence.

        Raises:
            UsageError: the budget cannot be read as a duration, or there is no such rule or
                sampler.
        """
        make_sampler(self.sampler, self.seed)  # fails now, not after the baseline
        return SearchOptions(
            budget_s=seconds_of(self.budget),
            lr_rule=self._rule(),
            seed=self.seed,
            sampler=self.sampler,
            fence=self.fence,
        )

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


def seconds_of(budget: str | float) -> float:
    """Return a budget in seconds, which may be given as text such as ``"3m"``."""
    return parse_duration(budget) if isinstance(budget, str) else float(budget)
