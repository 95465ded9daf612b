"""AppliedConfig: a config together with the facts needed to apply it in a fresh process.

A config alone does not say which DataLoader trains, which optimizers exist or which knobs the
program sets itself. The search builds an AppliedConfig from the baseline and the Profile and sends
it to the rigs; best.yaml stores it for ``autotune run`` and ``apply()``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autotune.program.config import Config, KnobValue
from autotune.program.flags import Flag
from autotune.program.lr import LrRule, batch_growth
from autotune.program.profile import LoaderFacts, OptimizerFacts, Profile


@dataclass(frozen=True)
class AppliedConfig:
    """A config and the facts about the program that its knobs need in order to act.

    Attributes:
        config: The values to apply.
        baseline: The values that the unmodified program uses. Only differences from them are
            applied.
        loader: Facts of the DataLoader that drives training, used to recognise it among the
            program's loaders. None without exactly one such loader.
        lr_rule: How learning rates follow the global batch size.
        program_knobs: Knobs that the program reads from its ``config`` parameter and applies
            itself. The seams leave them alone.
        device: Device type that the program trains on.
        program_autocast: Whether the program uses autocast itself. If so, its autocast is steered
            and no second one is added.
        program_scaler: Whether the program scales its losses with its own GradScaler.
        trainer: The library whose trainer runs the loop: ``lightning``, ``transformers`` or empty.
        flags: The program's command-line flags through which knobs act, by knob name.
        distributes_itself: The API with which the program trains on several devices; empty if it
            does not.
        optimizers: The program's optimizers, in the order of their first steps.
        sums: Whether gradients grow with the batch, as they do when the loss sums over its samples.
            None until this was measured.
        bounded_by_steps: The code that fixes the number of steps, such as ``train.py:57: for step
            in range(200)``; empty if none was found.
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
        """Return the AppliedConfig of the unmodified program, which all other configs start from.

        Args:
            baseline: The program's own values of the knobs.
            profile: What its first steps revealed.
            rule: How learning rates follow the batch size. By default each optimizer's class
                decides.
            flags: The program's command-line flags through which knobs act, by knob name.
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
        """Return the changed knobs that the seams must set.

        Knobs that the program reads from its ``config`` parameter and applies itself are left out.
        """
        changed = self.config.changes_from(self.baseline)
        return {knob: value for knob, value in changed.items() if knob not in self.program_knobs}

    def extra_work(self, config: Config, seen_growth: float = 1.0) -> float:
        """Return the samples that the whole run needs under a config, relative to the baseline.

        The factor differs from 1 only if the program makes a fixed number of steps. There, a larger
        batch does not reduce the number of steps, so configs are compared by steps/s. All other
        programs are compared by samples/s.

        Args:
            config: The config to judge.
            seen_growth: Measured ratio of samples per step, config / baseline. It is used only for
                a program that distributes itself, because autotune cannot know whether more ranks
                mean a larger global batch there.
        """
        if not self.bounded_by_steps:
            return 1.0
        if self.distributes_itself:
            return seen_growth
        return batch_growth(self.baseline, config)
