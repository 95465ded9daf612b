"""AppliedConfig: a config with all that a fresh process needs to apply it to the program."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autotune.program.config import Config, KnobValue
from autotune.program.flags import Flag
from autotune.program.lr import LrRule, batch_growth
from autotune.program.profile import LoaderFacts, OptimizerFacts, Profile


@dataclass(frozen=True)
class AppliedConfig:
    """A config and the facts that its knobs lean on.

    Attributes:
        config: The values to apply.
        baseline: What the program does by itself; only differences from it are applied.
        loader: The loader that trains, by which the program's loaders are told apart.
        lr_rule: How learning rates follow the global batch.
        program_knobs: Knobs that the program reads from its ``config`` parameter and applies
            itself.
        device: Device type that the program trains on.
        program_autocast: The program computes in autocast itself, which is steered then.
        program_scaler: It scales its losses itself.
        trainer: The library whose trainer runs its loop: ``lightning``, ``transformers`` or empty.
        flags: Flags of the program's own by which knobs act, by the names of the knobs.
        distributes_itself: By what the program trains on several devices, empty if it does not.
        optimizers: Those of the program, in the order of their first steps.
        sums: Gradients grow with the batch, as those of a loss that sums over its samples do; None
            as long as nobody has looked.
        bounded_by_steps: What says that it makes a fixed number of steps, empty if nothing does.
    """

    config: Config
    baseline: Config
    loader: LoaderFacts | None
    lr_rule: LrRule
    program_knobs: tuple[str, ...]
    device: str
    program_autocast: bool = False
    program_scaler: bool = False
    trainer: str = ""
    flags: Mapping[str, Flag] = field(default_factory=dict)
    distributes_itself: str = ""
    optimizers: tuple[OptimizerFacts, ...] = ()
    sums: bool | None = None
    bounded_by_steps: str = ""

    @classmethod
    def as_written(
        cls,
        baseline: Config,
        profile: Profile,
        rule: LrRule | None = None,
        flags: Mapping[str, Flag] | None = None,
    ) -> AppliedConfig:
        """Return the setting of a program as it is, against which every other is applied.

        Args:
            baseline: The program's own values of the knobs.
            profile: What its first steps revealed.
            rule: How learning rates follow the batch; by default each optimizer's kind decides.
            flags: Flags of the program's own by which knobs act.
        """
        return cls(
            config=baseline,
            baseline=baseline,
            loader=profile.training_loader,
            lr_rule=rule or LrRule.AUTO,
            program_knobs=tuple(profile.config_reads),
            device=profile.device,
            program_autocast=profile.program_autocast is not None,
            program_scaler=profile.program_scaler,
            trainer=profile.trainer,
            flags=flags or {},
            distributes_itself=profile.distributes_itself,
            optimizers=profile.optimizers,
            bounded_by_steps=profile.bounded_by_steps,
        )

    def changes(self) -> dict[str, KnobValue]:
        """Return the knobs that the seams must set, those of the program itself left out."""
        changed = self.config.changes_from(self.baseline)
        return {knob: value for knob, value in changed.items() if knob not in self.program_knobs}

    def extra_work(self, config: Config, seen_growth: float = 1.0) -> float:
        """Return how many times as many samples the whole run takes under a config.

        More than 1 only where a larger batch does not lessen the steps: there configs compare by
        steps/s, elsewhere by samples/s.

        Args:
            config: It.
            seen_growth: Samples of a step, times the baseline's, as measured: whether more ranks
                are more of them is a program's own affair where it distributes itself.
        """
        if not self.bounded_by_steps:
            return 1.0
        if self.distributes_itself:
            return seen_growth
        return batch_growth(self.baseline, config)
