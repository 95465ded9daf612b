"""ProgramTraits: what knobs must know of a program to act on it in a process that starts anew.

A search reads them from the Profile. They travel with each config to the rigs, and best.yaml keeps
them for ``autotune run`` and ``apply()``, which observe nothing before they act.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from autotune.program.flags import Flag
from autotune.program.profile import LoaderFacts, OptimizerFacts, Profile


@dataclass(frozen=True)
class ProgramTraits:
    """What does not change about a program from process to process.

    Attributes:
        device: Device type that the program trains on.
        loader: Facts of the DataLoader that drives training, used to recognise it among the
            program's loaders. None without exactly one such loader.
        program_knobs: Knobs that the program reads from its ``config`` parameter and applies
            itself. The seams leave them alone.
        program_autocast: Whether the program uses autocast itself. If so, its autocast is steered
            and no second one is added.
        program_scaler: Whether the program scales its losses with its own GradScaler.
        trainer: The library whose trainer runs the loop: ``lightning``, ``transformers`` or empty.
        flags: The program's command-line flags through which knobs act, by knob name.
        distributes_itself: The API with which the program trains on several devices; empty if it
            does not.
        optimizers: The program's optimizers, in the order of their first steps.
        bounded_by_steps: What fixes the number of steps, such as ``--max-steps 200``; empty if
            nothing was found.
        mmap_threshold: From how many bytes on its malloc returns a block as soon as it is freed;
            None if that is not known.
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

    @classmethod
    def of(cls, profile: Profile, flags: Mapping[str, Flag] | None = None) -> ProgramTraits:
        """Return the traits that a profile shows.

        Args:
            profile: What the program's first steps revealed.
            flags: The program's command-line flags through which knobs act, by knob name.
        """
        return cls(
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
        )
