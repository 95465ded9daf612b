"""Steering: how configs act on the running program, through the seams."""

from __future__ import annotations

import torch

from autotune.inside.ranks.group import ALONE, Group
from autotune.inside.seams import SeamSet
from autotune.knobs import registry
from autotune.knobs.strategies.base import FABRIC, LIGHTNING
from autotune.program.applied_config import AppliedConfig
from autotune.program.config import KnobValue
from autotune.program.lr import LrRule, batch_growth, batch_parts


def loose_knobs(setting: AppliedConfig) -> tuple[str, ...]:
    """Return the knobs in which the training loader may differ from the one that was seen."""
    loose = list(setting.program_knobs)
    if setting.flags.keys() & setting.changes().keys():  # what a flag does, the program knows
        loose += ["batch_size", "num_workers", "prefetch_factor", "pin_memory"]
    if setting.distributes_itself and "world_size" in setting.changes():
        loose += ["batch_size", "world_size"]  # it shares out its data as it likes
    return tuple(loose)


class Steering:
    """Applies configs to one program; knobs call its ``set_…`` methods (``knobs.base.Seams``).

    Whoever runs the program makes one before the program starts, and calls ``apply()`` on the main
    thread: before the program's first line, and in a rig between two steps.

    Args:
        seams: Those of this process.
    """

    def __init__(self, seams: SeamSet) -> None:
        self._seams = seams
        self._own_autocast = self._own_scaler = False
        self._device = "cpu"

    def apply(self, setting: AppliedConfig, since: AppliedConfig | None = None) -> None:
        """Apply what a setting changes: from the program's own values, or from another setting."""
        self._own_autocast, self._own_scaler = setting.program_autocast, setting.program_scaler
        self._device = setting.device
        is_told = "accumulation_steps" in setting.changes() or self._seams.trainers.rehearses
        if since is None and setting.trainer and is_told:
            self._seams.trainers.prepare(setting.trainer)
        self._seams.rates.set_rule(
            LrRule(setting.lr_rule),
            batch_parts(setting.baseline),
            setting.optimizers,
        )
        if setting.sums is not None:
            self.set_sums(sums=setting.sums)
        before = since.config if since is not None else setting.baseline
        self._seams.forward.allow_recompiles()
        self._seams.loader.hold()
        for knob, value in setting.config.changes_from(before).items():
            if knob in setting.flags:
                registry()[knob].apply_side_effects(value, self)
            elif knob not in setting.program_knobs:
                registry()[knob].apply(value, self)
        self._seams.loader.release()
        if since is None and self._seams.group.is_launched:
            self._join_ranks(setting)

    def _join_ranks(self, setting: AppliedConfig) -> None:
        """Do what being one of several processes asks for."""
        if "num_threads" in setting.config:  # ranks start with those of their share of cores
            registry()["num_threads"].apply(setting.config["num_threads"], self)
        if batch_growth(setting.baseline, setting.config) == 1.0:
            self._seams.rates.follow(world_size=self._seams.group.world_size)
        if not setting.distributes_itself:
            self._train_together()
        elif setting.distributes_itself in {LIGHTNING, FABRIC} and self._seams.group.world_size > 1:
            ranks = self._seams.group.local_world_size
            self._seams.trainers.launch(ranks, self._seams.group.world_size // ranks)

    def _train_together(self) -> None:
        """Make one program of the ranks that the launcher started, on their own shares of data."""
        if not self._seams.distribution.is_needed:
            self._seams.distribution.use("ddp")
        if self._seams.group.world_size > 1:
            self._seams.loader.share(self._seams.group, self._seams.distribution.loader_begins)
        self._seams.rates.follow(world_size=self._seams.group.world_size)

    def set_precision(self, dtype_name: str | None) -> None:
        """Compute in this dtype where the program computes in autocast, or all through its model.

        fp16 comes with loss scaling, unless the program scales its losses itself.
        """
        dtype = getattr(torch, dtype_name) if dtype_name is not None else None
        if self._own_autocast:
            self._seams.autocast.steer(dtype)
        else:
            self._seams.forward.set_autocast(dtype, self._device)
        scales = dtype is torch.float16 and not self._own_scaler
        self._seams.scaling.set_enabled(enabled=scales)

    def set_sums(self, *, sums: bool) -> None:
        """Say whether gradients grow with the batch, as those of a loss that sums do."""
        self._seams.rates.sums = self._seams.accumulation.sums = sums
        self._seams.distribution.weigh_as_sums(enabled=sums)

    def set_accumulation_steps(self, steps: int) -> None:
        """Make a step of so many batches: by the trainer's own way, if one runs the loop."""
        if self._seams.trainers.in_use:
            self._seams.trainers.accumulate(steps)
        else:
            self._seams.accumulation.steps = steps

    def set_loader_options(self, **options: int | bool | str) -> None:
        """Ask the loader seam for options."""
        self._seams.loader.request(**options)

    def set_torch(self, name: str, value: KnobValue) -> None:
        """Set one of torch's settings of this process."""
        self._seams.process.switch(name, value)

    def set_interop_threads(self, threads: int) -> None:
        """Set torch's inter-op threads."""
        self._seams.process.set_interop_threads(threads)

    def set_optimizer_implementation(self, name: str) -> None:
        """Choose how optimizers update their parameters."""
        self._seams.optimizer.use_implementation(name)

    def set_zero_grad_to_none(self, *, enabled: bool) -> None:
        """Make ``zero_grad`` drop gradients, or not."""
        self._seams.clearing.drop_zeros(enabled=enabled)

    def set_channels_last(self, *, enabled: bool) -> None:
        """Choose the memory format of 4-D tensors."""
        self._seams.forward.set_channels_last(enabled=enabled)

    def set_non_blocking(self, *, enabled: bool) -> None:
        """Choose how pinned memory is copied."""
        self._seams.transfer.set_non_blocking(enabled=enabled)

    def compile(self, mode: str | None) -> None:
        """Compile the model."""
        self._seams.forward.compile_in(mode=mode)

    def set_compile_dynamic(self, *, dynamic: bool | None) -> None:
        """Choose for which shapes the model is compiled."""
        self._seams.forward.shape(dynamic=dynamic)

    def checkpoint_blocks(self, *, every: int) -> None:
        """Choose the blocks that are recomputed, among those of the models known so far."""
        self._seams.checkpoint.choose(every)
        self._seams.checkpoint.act_on(self._seams.forward.roots)

    def scale_lr_with(self, **batch: int) -> None:
        """Tell the rates seam the factors of the global batch."""
        self._seams.rates.follow(**batch)

    def set_strategy(self, strategy: str) -> None:
        """Tell the distribution seam its strategy."""
        self._seams.distribution.use(strategy)

    def set_strategy_options(self, **options: KnobValue) -> None:
        """Tell the distribution seam the strategy's options."""
        self._seams.distribution.request(**options)


def install(setting: AppliedConfig, group: Group = ALONE, *, is_late: bool = False) -> SeamSet:
    """Apply a setting to the program that this process is about to run, or runs by now."""
    seams = SeamSet(None, setting.loader, loose_knobs(setting), group)
    Steering(seams).apply(setting)
    if is_late:
        seams.install_late()
    else:
        seams.install()
    return seams
