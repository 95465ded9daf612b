"""Apply configs to the running program, by setting what the seams do."""

from __future__ import annotations

import torch

from autotune.inside import malloc
from autotune.inside.ranks.group import ALONE, Group
from autotune.inside.seam_set import SeamSet
from autotune.knobs import registry
from autotune.knobs.strategies.base import FABRIC, LIGHTNING
from autotune.program.applied_config import AppliedConfig, ProgramTraits
from autotune.program.config import KnobValue
from autotune.program.lr import LrRule, batch_growth, batch_parts


def loose_knobs(applied: AppliedConfig) -> tuple[str, ...]:
    """Return the knobs in which the training loader may differ from the one that was observed.

    autotune finds the training loader by its facts. If the program itself applies a knob, for
    example through a flag, the loader's facts change with it and must not be compared.
    """
    loose = list(applied.traits.program_knobs)
    if (
        applied.traits.flags.keys() & applied.changes().keys()
    ):  # only the program knows what a flag does
        loose += ["batch_size", "workers", "pinning"]
    if applied.traits.distributes_itself and "devices" in applied.changes():
        # The program divides its data among the ranks in its own way.
        loose += ["batch_size", "devices"]
    return tuple(loose)


class Steering:
    """Applies configs to one program; knobs call its ``set_…`` methods (``knobs.base.Seams``).

    Whoever runs the program makes one before the program starts, and calls ``apply()`` on the main
    thread: before the program's first line, and in a rig between two steps.
    """

    def __init__(self, seams: SeamSet) -> None:
        self._seams = seams
        self._traits = ProgramTraits("cpu")
        self._loader_options: dict[str, KnobValue] = {}

    def apply(self, applied: AppliedConfig, since: AppliedConfig | None = None) -> None:
        """Apply the knobs in which a config differs from the present state.

        Knobs that the program applies itself are skipped. For knobs that a flag of the program
        sets, only the side effects are applied, such as scaling the learning rate.

        Args:
            applied: The config to apply, with the facts that its knobs need.
            since: The config that was applied before; None if the program still has its own
                values.
        """
        self._traits = applied.traits
        is_told = "accumulation_steps" in applied.changes() or self._seams.trainers.rehearses
        if since is None and applied.traits.trainer and is_told:
            self._seams.trainers.prepare(applied.traits.trainer)
        self._seams.steps.rates.set_rule(
            LrRule(applied.lr_rule),
            batch_parts(applied.baseline),
            applied.traits.optimizers,
        )
        before = since.config if since is not None else applied.baseline
        self._seams.model.forward.allow_recompiles()
        self._loader_options.clear()
        for knob, value in applied.config.changes_from(before).items():
            if knob in applied.traits.flags:
                registry()[knob].apply_side_effects(value, self)
            elif knob not in applied.traits.program_knobs:
                registry()[knob].apply(value, self)
        # At once: a feed in another thread must not rebuild its loader for each knob of the config
        if self._loader_options:
            self._seams.loader.options.request(**self._loader_options)
        if since is None and self._seams.group.is_launched:
            self._join_ranks(applied)

    def _join_ranks(self, applied: AppliedConfig) -> None:
        # A rank starts with the threads for its share of cores, which need not be the config's.
        if "threads" in applied.config:
            registry()["threads"].apply(applied.config["threads"], self)
        if batch_growth(applied.baseline, applied.config) == 1.0:
            self._seams.steps.rates.follow(devices=self._seams.group.world_size)
        if not applied.traits.distributes_itself:
            self._train_together()
        elif (
            applied.traits.distributes_itself in {LIGHTNING, FABRIC}
            and self._seams.group.world_size > 1
        ):
            ranks = self._seams.group.local_world_size
            self._seams.trainers.launch(ranks, self._seams.group.world_size // ranks)

    def _train_together(self) -> None:
        """Let the launched ranks train one model, each on its share of the data."""
        if not self._seams.model.distribution.is_needed:
            self._seams.model.distribution.use("ddp")
        if self._seams.group.world_size > 1:
            self._seams.loader.share(
                self._seams.group, self._seams.model.distribution.loader_begins
            )
        self._seams.steps.rates.follow(devices=self._seams.group.world_size)

    def set_precision(self, dtype_name: str | None) -> None:
        """Compute in this dtype; None restores the program's own.

        If the program uses autocast, its autocast is redirected; otherwise the whole model runs
        under autocast. fp16 comes with loss scaling, unless the program scales its losses itself.

        Args:
            dtype_name: Name of a torch dtype, such as ``bfloat16``.
        """
        dtype = getattr(torch, dtype_name) if dtype_name is not None else None
        if self._traits.program_autocast:
            self._seams.model.autocast.steer(dtype)
        else:
            self._seams.model.forward.set_autocast(dtype, self._traits.device)
        scales = dtype is torch.float16 and not self._traits.program_scaler
        self._seams.steps.scaling.set_enabled(enabled=scales)

    def set_accumulation_steps(self, steps: int) -> None:
        """Make one optimizer step of this many batches.

        If a library's trainer runs the loop, its own accumulation is used.
        """
        if self._seams.trainers.in_use:
            self._seams.trainers.accumulate(steps)
        else:
            self._seams.steps.accumulation.steps = steps

    def set_loader_options(self, **options: KnobValue) -> None:
        self._loader_options.update(options)

    def set_torch(self, name: str, value: KnobValue) -> None:
        self._seams.process.switch(name, value)

    def set_fp32_products(self, precision: KnobValue) -> None:
        name = {"cuda": "tf32", "cpu": "medium"}.get(self._traits.device)
        if name is not None:
            self._seams.process.switch(name, precision)

    def set_optimizer_implementation(self, name: str) -> None:
        self._seams.steps.optimizer.use_implementation(name)

    def keep_freed_memory(self, *, enabled: bool) -> None:
        threshold = self._traits.mmap_threshold or malloc.FIRST_THRESHOLD
        malloc.keep_freed(keep=enabled, threshold=threshold)

    def set_channels_last(self, *, enabled: bool) -> None:
        self._seams.model.forward.set_channels_last(enabled=enabled)

    def set_non_blocking(self, *, enabled: bool) -> None:
        self._seams.model.transfer.set_non_blocking(enabled=enabled)

    def compile(self, mode: str | None, *, dynamic: bool | None = None) -> None:
        self._seams.model.forward.compile_in(mode=mode, dynamic=dynamic)

    def checkpoint_blocks(self, *, every: int) -> None:
        """Recompute every n-th repeated block in the backward pass; 0 for none.

        It acts on the models that are known so far; ``SeamSet`` applies it to the others once they
        are known.
        """
        self._seams.model.checkpoint.choose(every)
        self._seams.model.checkpoint.act_on(self._seams.model.forward.roots)

    def scale_lr_with(self, **batch: int) -> None:
        self._seams.steps.rates.follow(**batch)

    def set_strategy(self, strategy: str) -> None:
        self._seams.model.distribution.use(strategy)

    def set_strategy_options(self, **options: KnobValue) -> None:
        self._seams.model.distribution.request(**options)


def install(applied: AppliedConfig, group: Group = ALONE, *, is_late: bool = False) -> SeamSet:
    """Apply a config to the program of this process, without measuring it; return the seams.

    ``autotune run`` and ``autotune.apply()`` use it.

    Args:
        is_late: Whether the program already runs, so that it may have imported by name what the
            seams replace.
    """
    seams = SeamSet(None, applied.traits.loader, loose_knobs(applied), group)
    Steering(seams).apply(applied)
    if is_late:
        seams.install_late()
    else:
        seams.install()
    return seams
