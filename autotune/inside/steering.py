"""Apply configs to the running program, by setting what the seams do."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from autotune.inside import malloc
from autotune.inside.ranks.group import ALONE, Group
from autotune.inside.seam_set import SeamSet
from autotune.knobs import registry
from autotune.knobs.base import StrategyOption
from autotune.knobs.model_options import DYNAMIC
from autotune.knobs.strategies.base import FABRIC, LIGHTNING
from autotune.knobs.torch_flags import ProcessSwitch
from autotune.machine.probes.torch_memory import SpareMemory
from autotune.program.applied_config import LOADER_OPTIONS, AppliedConfig, ProgramTraits
from autotune.program.config import KnobValue
from autotune.program.domain import parts_of, strategy_in
from autotune.program.lr import LrRule, batch_growth, batch_parts

DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
EVERY = {"off": 0, "half": 2, "all": 1}  # every n-th block recomputes; 0 stands for none


def loose_knobs(applied: AppliedConfig) -> tuple[str, ...]:
    """Return the knobs in which the training loader may differ from the one that was observed.

    If the program itself applies a knob, for example through a flag, the loader's facts change.
    """
    loose = list(applied.traits.program_knobs)
    if applied.traits.flags.keys() & applied.changes().keys():
        # only the program knows what a flag does
        loose += ["batch_size", "workers", "pinning"]
    if applied.traits.distributes_itself and "devices" in applied.changes():
        # The program divides its data among the ranks in its own way.
        loose += ["batch_size", "devices"]
    return tuple(loose)


class Steering:
    """Applies configs to one program (``knobs.base.Seams``).

    ``apply()`` is called on the main thread: before the program's first line, and in a rig between
    two steps.

    Attributes:
        spare: What is left free of the GPUs' memory, in a trial.
    """

    def __init__(self, seams: SeamSet) -> None:
        self._seams = seams
        self._traits = ProgramTraits("cpu")
        self._has_replicas = False
        self._loader_options: dict[str, KnobValue] = {}
        self.spare = SpareMemory("cpu", is_as_written=True)
        model = seams.model
        self._acts: Mapping[str, Callable[[Any], object]] = {
            "precision": self._compute_in,
            "memory_format": lambda value: model.forward.set_channels_last(
                enabled=value == "channels_last"
            ),
            "optimizer": seams.steps.optimizer.use_implementation,
            "compile": self._compile,
            "devices": lambda value: model.distribution.use(parts_of(value)[0]),
            "accumulation_steps": self._accumulate,
            "activation_checkpointing": self._checkpoint,
            "keep_freed_memory": lambda value: malloc.keep_freed(
                keep=value, threshold=self._traits.mmap_threshold or malloc.FIRST_THRESHOLD
            ),
        }

    def apply(self, applied: AppliedConfig, since: AppliedConfig | None = None) -> None:
        """Apply the knobs in which a config differs from the present state.

        Knobs that the program applies itself are skipped. For knobs that a flag of the program
        sets, only the side effects are applied, such as scaling the learning rate.

        Args:
            since: The config that was applied before; None if the program still has its own values.
        """
        self.spare.switch(is_as_written=applied.is_as_written)
        self._traits = applied.traits
        replicates = strategy_in(applied.config) == "data_parallel"
        self._has_replicas = replicates or applied.traits.replicas > 1
        rehearses = self._seams.trainers.rehearsal is not None
        is_told = "accumulation_steps" in applied.changes() or rehearses
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
            if knob in applied.traits.program_knobs and knob not in applied.traits.flags:
                continue
            if knob not in applied.traits.flags:
                registry()[knob].apply(value, self)
            if knob in {"batch_size", "accumulation_steps"}:
                self._seams.steps.rates.follow(**{knob: int(value)})
            elif knob == "pinning":
                self._seams.model.transfer.is_needed = value == "non-blocking"
        # At once: a feed in another thread must not rebuild its loader for each knob of the config
        if self._loader_options:
            self._seams.loader.options.request(**self._loader_options)
        if since is None and self._seams.group.is_launched:
            self._join_ranks(applied)

    def set(self, knob: str, value: KnobValue) -> None:
        """Have the program use a value of a knob; a knob that acts only at the start is ignored."""
        registered = registry()[knob]
        if knob == "pinning":
            self._loader_options[LOADER_OPTIONS[knob]] = value != "off"
        elif knob in LOADER_OPTIONS:
            self._loader_options[LOADER_OPTIONS[knob]] = value
        elif isinstance(registered, ProcessSwitch):
            self._seams.process.switch(knob, value)
        elif isinstance(registered, StrategyOption):
            self._seams.model.distribution.request(**registered.options(value))
        elif knob in self._acts:
            self._acts[knob](value)

    def _join_ranks(self, applied: AppliedConfig) -> None:
        group, rates = self._seams.group, self._seams.steps.rates
        # A rank starts with the threads for its share of cores, which need not be the config's.
        if "threads" in applied.config:
            self.set("threads", applied.config["threads"])
        if batch_growth(applied.baseline, applied.config) == 1.0:
            rates.follow(devices=group.world_size)
        itself = applied.traits.distributes_itself
        if itself in {LIGHTNING, FABRIC} and group.world_size > 1:
            ranks = group.local_world_size
            self._seams.trainers.launch(ranks, group.world_size // ranks)
        if itself:
            return
        # The launched ranks train one model, each on its share of the data
        distribution = self._seams.model.distribution
        if not distribution.is_needed:
            distribution.use("ddp")
        if group.world_size > 1:
            self._seams.loader.share(group, distribution.loader_begins)
        rates.follow(devices=group.world_size)

    def _compute_in(self, precision: str) -> None:
        """Compute in a format; fp32 restores the program's.

        If the program uses autocast, its autocast is redirected; otherwise the whole model runs
        under autocast, as do its replicas. fp16 comes with loss scaling, unless the program scales
        its losses itself.
        """
        dtype = DTYPES.get(precision)
        if self._traits.program_autocast:
            self._seams.model.autocast.steer(dtype)
        else:
            self._seams.model.forward.set_autocast(dtype, self._traits.device)
            # torch.nn.parallel.parallel_apply has each replica's thread enter autocast itself, and
            # does not tell it the dtype
            if self._has_replicas:
                self._seams.model.autocast.steer(dtype)
        scales = dtype is torch.float16 and not self._traits.program_scaler
        self._seams.steps.scaling.set_enabled(enabled=scales)
        products = {"cuda": "tf32", "cpu": "medium"}.get(self._traits.device)
        if products is not None:
            self._seams.process.switch(products, precision)

    def _compile(self, value: str) -> None:
        """Compile the outermost modules after the first steps have shown which these are."""
        mode = value.removesuffix(DYNAMIC)
        dynamic = True if value.endswith(DYNAMIC) else None  # None lets torch decide
        self._seams.model.forward.compile_in(mode=None if mode == "off" else mode, dynamic=dynamic)

    def _accumulate(self, steps: int) -> None:
        """Make one optimizer step of this many batches, by a trainer's own means if it has one."""
        if self._seams.trainers.in_use:
            self._seams.trainers.accumulate(steps)
        else:
            self._seams.steps.accumulation.steps = steps

    def _checkpoint(self, blocks: str) -> None:
        """Recompute repeated blocks; ``SeamSet`` does it for models that are known later."""
        self._seams.model.checkpoint.every = EVERY[blocks]
        self._seams.model.checkpoint.act_on(self._seams.model.forward.roots)


def install(applied: AppliedConfig, group: Group = ALONE, *, is_late: bool = False) -> SeamSet:
    """Apply a config to the program of this process, without measuring it; return the seams."""
    seams = SeamSet(None, applied.traits.loader, loose_knobs(applied), group)
    Steering(seams).apply(applied)
    seams.install(is_late=is_late)
    return seams
