"""Learning: what a config changes about what a program learns, and how to say so.

Batch, learning rates, BatchNorm, and flags whose meaning autotune does not know. All of it follows
from the config and from what the program's first steps revealed; nothing is measured here.
"""

from __future__ import annotations

from dataclasses import dataclass

from autotune.program.applied_config import AppliedConfig
from autotune.program.config import Config
from autotune.program.domain import ranks_in
from autotune.program.flags import KEYWORD
from autotune.program.lr import LrRule, batch_growth, global_batch, optimizer_factor, rule_for

ADVISE_WARMUP_ABOVE = 4


@dataclass(frozen=True)
class Learning:
    """A config next to the baseline, as far as learning is concerned."""

    best: Config
    baseline: Config
    applied: AppliedConfig
    has_batchnorm: bool

    @property
    def lr_factor(self) -> float:
        """Factor on the learning rate of the first optimizer under the config.

        1 if the batch stays, or if the program sets its batch and learning rate itself.
        """
        return next((factor for _, _, factor in self._factors), 1.0)

    @property
    def _factors(self) -> list[tuple[str, LrRule, float]]:
        """Name, rule and learning-rate factor of each of the program's optimizers.

        Empty if the program reads the batch size from its config and adapts the rate itself.
        """
        if "batch_size" in self.applied.traits.program_knobs:
            return []
        chosen = self.applied.lr_rule
        return [
            (
                facts.name,
                rule_for(facts.families) if chosen is LrRule.AUTO else chosen,
                optimizer_factor(chosen, facts.families, self.batch_growth),
            )
            for facts in self.applied.traits.optimizers
        ]

    @property
    def global_batches(self) -> tuple[int | None, int | None]:
        """Samples in one optimizer step of ``baseline`` and of the config, over all ranks.

        None if the batch size is not known.
        """
        return global_batch(self.baseline), global_batch(self.best)

    @property
    def batch_growth(self) -> float:
        """Ratio of the global batches, the config to baseline.

        Ranks count unless the program distributes itself: what they do to its batch is not known.
        """
        counts_ranks = not self.applied.traits.distributes_itself
        return batch_growth(self.baseline, self.best, counts_ranks=counts_ranks)

    @property
    def note(self) -> str:
        """What the config changes about learning, as sentences for the user."""
        note = self._batch_note
        if names := ", ".join(self._own_flags):
            note += f" What {names} means for learning is yours to judge: it is your program's own."
        return note

    @property
    def _batch_note(self) -> str:
        before, after = self.global_batches
        growth = self.batch_growth
        if growth == 1.0:
            note = "The learning rate is the program's own, and so are the samples of each step."
            if before is None and self._own_flags:
                return "The learning rate is the program's own."
            return note + self._micro_batch_note
        if before is None:
            change = f"A step has {growth:g} times the samples"
        else:
            change = f"The batch goes from {before} to {after}"
        if "batch_size" in self.applied.traits.program_knobs:
            return f"{change}; the program sets its own learning rate."
        scaled = dict.fromkeys(
            f"{name} is multiplied by {factor:.3g} ({rule} rule)"
            for name, rule, factor in self._factors
            if factor != 1.0
        )
        rates = "in each step the learning rate of " + " and that of ".join(scaled)
        rates = rates if scaled else "the learning rate stays"
        note = f"{change} and {rates}: check the final accuracy once."
        if growth > ADVISE_WARMUP_ABOVE:
            note += " A few epochs of learning-rate warm-up are advisable at this factor."
        return f"{note}{self._micro_batch_note} --keep-global-batch searches without this change."

    @property
    def _own_flags(self) -> list[str]:
        changes = self.best.changes_from(self.baseline)
        return [knob for knob in changes if knob.startswith(("-", KEYWORD))]

    @property
    def _micro_batch_note(self) -> str:
        note, changes = "", self.best.changes_from(self.baseline)
        if (steps := changes.get("accumulation_steps")) is not None:
            note += (
                f" Gradients of {steps} batches make one step; a loss must average over its "
                "samples, and BatchNorm sees each batch alone."
            )
        ranks = ranks_in(changes)
        if self.has_batchnorm and ranks != 1 and not self.best.get("sync_batchnorm"):
            note += " BatchNorm sees the samples of each rank alone."
        return note
