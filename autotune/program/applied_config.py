"""AppliedConfig: a config together with the facts needed to apply it in a fresh process.

A config alone does not say which DataLoader trains, which optimizers exist or which knobs the
program sets itself; the traits do. The search sends an AppliedConfig to the rigs; best.yaml stores
it for ``autotune run`` and ``apply()``, with those facts alone that its settings need.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields, replace

from autotune.program.config import Config, KnobValue
from autotune.program.flags import Flag
from autotune.program.lr import PARTS, LrRule, batch_growth
from autotune.program.profile import LoaderFacts, OptimizerFacts, Profile

# Settings that need another loader, by their names among the options that are requested of it
LOADER_OPTIONS = {
    "batch_size": "batch_size",
    "workers": "num_workers",
    "prefetch_factor": "prefetch_factor",
    "pinning": "pin_memory",
    "in_order": "in_order",
    "worker_threads": "worker_threads",
    "worker_start_method": "start_method",
}
# Which facts a setting needs in a fresh process, to find there what it acts on; those that are not
# listed need none but ALWAYS_NEEDED
FACTS_NEEDED: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(LOADER_OPTIONS, ("loader",)),
    **dict.fromkeys(PARTS, ("loader", "optimizers", "bounded_by_steps", "trainer")),
    "precision": ("program_autocast", "program_scaler"),
    "keep_freed_memory": ("mmap_threshold",),
}
ALWAYS_NEEDED = ("device", "program_knobs", "flags", "distributes_itself", "replicas")


@dataclass(frozen=True)
class ProgramTraits:
    """What does not change about a program from process to process.

    Attributes:
        loader: Facts of the DataLoader that drives training, used to recognise it among the
            program's loaders. None without exactly one such loader.
        program_knobs: Knobs that the program reads from its ``config`` parameter and applies
            itself. The seams leave them alone.
        program_autocast: Whether the program uses autocast itself. If so, its autocast is steered
            and no second one is added.
        program_scaler: Whether the program scales its losses with its own GradScaler.
        trainer: The library whose trainer runs the loop: ``lightning``, ``transformers`` or empty.
        distributes_itself: The API with which the program trains on several devices; empty if it
            does not.
        optimizers: The program's optimizers, in the order of their first steps.
        bounded_by_steps: What fixes the number of steps, such as ``--max-steps 200``; empty if
            nothing was found.
        mmap_threshold: From how many bytes on its malloc returns a block as soon as it is freed;
            None if that is not known.
        replicas: Among how many devices its ``nn.DataParallel`` divides a batch; 0 if it has none.
    """

    device: str
    loader: LoaderFacts | None = None
    program_knobs: tuple[str, ...] = ()
    program_autocast: bool = False
    program_scaler: bool = False
    trainer: str = ""
    flags: Mapping[str, Flag] = field(default_factory=dict)
    distributes_itself: str = ""
    optimizers: tuple[OptimizerFacts, ...] = ()
    bounded_by_steps: str = ""
    mmap_threshold: int | None = None
    replicas: int = 0

    def needed_by(self, settings: Collection[str]) -> ProgramTraits:
        """Return the facts that these settings need in a fresh process; the others are unknown."""
        needed = {*ALWAYS_NEEDED, *(one for name in settings for one in FACTS_NEEDED.get(name, ()))}
        kept = {f.name: getattr(self, f.name) for f in fields(self) if f.name in needed}
        flags = {name: flag for name, flag in self.flags.items() if name in settings}
        return replace(ProgramTraits(self.device), **{**kept, "flags": flags})


@dataclass(frozen=True)
class AppliedConfig:
    """A config and the facts about the program that its knobs need in order to act.

    Attributes:
        baseline: The values that the unmodified program uses. Only differences from them are
            applied.
    """

    config: Config
    baseline: Config
    traits: ProgramTraits
    lr_rule: LrRule = LrRule.AUTO

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
            rule: How learning rates follow the batch size. By default each optimizer's class
                decides.
        """
        traits = ProgramTraits(
            device=profile.device,
            loader=profile.training_loader,
            program_knobs=tuple(profile.config_reads),
            program_autocast=profile.precision.autocast is not None,
            program_scaler=profile.precision.has_scaler,
            trainer=profile.loop.trainer,
            flags=flags or {},
            distributes_itself=profile.ranks.distributed_by,
            optimizers=profile.optimizers,
            bounded_by_steps=profile.loop.length.bounded_by_steps,
            mmap_threshold=profile.allocators.mmap_threshold,
            replicas=profile.model.replicas,
        )
        return cls(baseline, baseline, traits, rule or LrRule.AUTO)

    @property
    def is_as_written(self) -> bool:
        """Whether the program trains under it as it does without autotune."""
        return self.config == self.baseline

    def changes(self) -> dict[str, KnobValue]:
        """Return the changed knobs that the seams must set.

        Knobs that the program reads from its ``config`` parameter and applies itself are left out.
        """
        by_program = self.traits.program_knobs
        changed = self.config.changes_from(self.baseline)
        return {knob: value for knob, value in changed.items() if knob not in by_program}

    def extra_work(self, config: Config, seen_growth: float = 1.0) -> float:
        """Return the samples that the whole run needs under a config, relative to the baseline.

        The factor differs from 1 only if the program makes a fixed number of steps. There, a larger
        batch does not reduce the number of steps, so configs are compared by steps/s. All other
        programs are compared by samples/s.

        Args:
            seen_growth: Measured ratio of samples per step, config / baseline. It is used only for
                a program that distributes itself, because autotune cannot know whether more ranks
                mean a larger global batch there.
        """
        if not self.traits.bounded_by_steps:
            return 1.0
        if self.traits.distributes_itself:
            return seen_growth
        return batch_growth(self.baseline, config)
