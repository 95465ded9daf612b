"""The seam at the trainers of Lightning and Hugging Face, which run the training loop themselves.

Such a trainer counts its own steps and accumulates gradients itself. So the seams at PyTorch alone
can neither keep it in its first epoch, as a measurement needs, nor set how it accumulates.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any
from weakref import WeakSet

from torch.utils.data import DataLoader

from autotune.inside.hubs.iterate import IterateListener
from autotune.inside.hubs.patches import Patches, Seam
from autotune.program.profile import RunLength
from autotune.program.rehearsal import RehearsalPlan

Call = Callable[..., Any]
FOREVER = 10**15  # a number of steps that no trainer reaches
# Classes of Lightning that choose the number of processes by arguments of their constructor.
LIGHTNING_TAKES_DEVICES = (
    ("lightning.pytorch", "Trainer"),
    ("pytorch_lightning", "Trainer"),
    ("lightning.fabric", "Fabric"),
)
LIGHTNING, TRANSFORMERS = "lightning", "transformers"
MODULES = {
    "lightning.pytorch": LIGHTNING,
    "pytorch_lightning": LIGHTNING,
    "transformers.trainer": TRANSFORMERS,
}


class TrainersSeam(Seam, IterateListener):
    """Keeps trainers in their first epoch in a rig, and sets how they accumulate gradients.

    Trainers count steps, so a feed that never ends does not keep them from validating, saving and
    ending. They read batches ahead, so accumulation is set on the trainer instead of holding steps
    back. A version of a library without the methods patched here is left as it is: the program then
    ends during a trial, and the search starts it again.

    Args:
        endless: Keep the first epoch running until the rig ends the program.

    Attributes:
        rehearsal: Epochs are shortened by this plan and end normally; None leaves them.
        in_use: The library whose trainer runs the program's loop (``lightning`` or
            ``transformers``); empty if the program has its own loop.
    """

    def __init__(self, *, endless: bool, rehearsal: RehearsalPlan | None = None) -> None:
        self._endless = endless
        self.rehearsal = rehearsal
        self._patches = Patches()
        self._patched: set[str] = set()
        self._running: WeakSet[Any] = WeakSet()
        self._steps: int | None = None
        self.in_use = ""
        self._length = RunLength()

    def loader_built(self, loader: DataLoader[Any]) -> None:  # noqa: ARG002
        """Patch the trainers, as ``patch()`` does."""
        self.patch()

    def patch(self) -> None:
        """Patch the trainers that the program has imported by now, each library once.

        Does not import a library, because most programs use none of them.
        """
        for name, library in MODULES.items():
            module = sys.modules.get(name)
            if name in self._patched or not hasattr(module, "Trainer"):
                continue
            self._patched.add(name)
            if library == TRANSFORMERS:
                self._patch_transformers(module.Trainer)  # type: ignore[union-attr]
            else:
                loops = importlib.import_module(f"{name}.loops.training_epoch_loop")
                self._patch_lightning(module.Trainer, loops._TrainingEpochLoop)  # type: ignore[union-attr]  # noqa: SLF001

    def prepare(self, library: str) -> None:
        """Import a library and patch its trainer before the program starts.

        Used if accumulation or short epochs must be set before the trainer begins. A library that
        cannot be imported is skipped.
        """
        for name, its in MODULES.items():
            if its == library:
                with suppress(ImportError):
                    importlib.import_module(name)
        self.in_use = library
        self.patch()

    @property
    def length(self) -> RunLength:
        """How many epochs or steps the trainer makes."""
        if self.in_use != LIGHTNING or not self._running:
            return self._length
        return _lightning_length(next(iter(self._running)))

    def launch(self, ranks: int, nodes: int) -> None:
        """Make Lightning use all ranks that were launched, instead of the program's arguments.

        The strategy becomes ``ddp`` if the program leaves it at ``auto``.
        """

        def begin(original: Call, its: Any, *args: Any, **kwargs: Any) -> None:
            if kwargs.get("strategy", "auto") == "auto":
                kwargs["strategy"] = "ddp"
            original(its, *args, **{**kwargs, "devices": ranks, "num_nodes": nodes})

        for name, owner in LIGHTNING_TAKES_DEVICES:
            with suppress(ImportError):
                trainer = getattr(importlib.import_module(name), owner)
                self._patches.wrap(trainer, "__init__", begin)

    def accumulate(self, steps: int) -> None:
        """Set the batches per optimizer step of running trainers and of those that begin later."""
        self._steps = steps
        for trainer in self._running:
            self._set_steps(trainer)

    def _begins(self, trainer: Any, library: str) -> None:
        self.in_use = library
        self._running.add(trainer)
        self._set_steps(trainer)
        if self.rehearsal is not None and library == LIGHTNING:
            _shorten_lightning(trainer, self.rehearsal)
        elif self.rehearsal is not None:
            _shorten_transformers(trainer.args, self.rehearsal)

    def _set_steps(self, trainer: Any) -> None:
        if self._steps is None:
            return
        if hasattr(trainer, "accumulate_grad_batches"):
            trainer.accumulate_grad_batches = self._steps
        else:
            trainer.args.gradient_accumulation_steps = self._steps

    def _before(self, owner: Any, method: str, library: str) -> None:
        """Patch a trainer's method so that the seam learns of the trainer before it runs."""

        def begin(original: Call, trainer: Any, *args: Any, **kwargs: Any) -> Any:
            self._begins(trainer, library)
            return original(trainer, *args, **kwargs)

        self._patches.wrap(owner, method, begin)

    def _patch_lightning(self, trainer: Any, loop: Any) -> None:
        self._before(trainer, "fit", LIGHTNING)
        if not self._endless or not hasattr(loop, "_num_ready_batches_reached"):
            return

        def begin(original: Call, epoch: Any, fetcher: Any) -> None:
            # fit() may have begun before patch() patched it: a loader is often built only there.
            self._begins(epoch.trainer, LIGHTNING)
            original(epoch, fetcher)
            if fetcher.length is not None:
                fetcher.length = FOREVER

        self._patches.wrap(loop, "on_run_start", begin)
        self._patches.replace(loop, "_is_training_done", property(lambda _epoch: False))
        self._patches.replace(loop, "_num_ready_batches_reached", lambda _epoch: False)
        self._patches.replace(loop, "_should_check_val_fx", lambda _epoch, _fetcher: False)

    def _patch_transformers(self, trainer: Any) -> None:
        self._before(trainer, "train", TRANSFORMERS)
        if not hasattr(trainer, "_run_epoch"):
            return
        if self.rehearsal is not None:
            self._patches.wrap(trainer, "_run_epoch", partial(_run_shortly, self.rehearsal))
        if not self._endless:
            return
        self._patches.wrap(trainer, "_run_epoch", self._run_endlessly)
        self._patches.wrap(trainer, "get_batch_samples", _end_without_batches)
        for name, act in (("_maybe_log_save_evaluate", _log_only), ("_save_checkpoint", _nothing)):
            if hasattr(trainer, name):
                self._patches.wrap(trainer, name, act)

    def _run_endlessly(self, original: Call, its: Any, *args: Any, **kwargs: Any) -> Any:
        self._begins(its, TRANSFORMERS)  # train() may have begun before patch() patched it
        self._length = _transformers_length(its.args)
        its.state.max_steps = FOREVER
        counts = {"steps_in_epoch": FOREVER, "num_update_steps_per_epoch": FOREVER}
        return original(its, *args, **{**kwargs, **counts})


def _lightning_length(trainer: Any) -> RunLength:
    epochs = getattr(trainer, "max_epochs", None)
    steps, is_endless = getattr(trainer, "max_steps", None) or -1, epochs in {None, -1}
    said = f"max_epochs={epochs}" if steps < 0 else f"max_steps={steps}"
    return RunLength(
        None if epochs is None or is_endless or steps > 0 else float(epochs),
        f"{said} of its Trainer",
        float(steps) if is_endless and steps > 0 else None,  # with both, whichever ends first
    )


def _transformers_length(arguments: Any) -> RunLength:
    if arguments.max_steps > 0:
        said = f"max_steps={arguments.max_steps} of its Trainer"
        return RunLength(None, said, float(arguments.max_steps))
    epochs = arguments.num_train_epochs
    return RunLength(epochs, f"num_train_epochs={epochs:g} of its Trainer")


def _end_without_batches(original: Call, trainer: Any, *args: Any, **kwargs: Any) -> Any:
    """End the epoch where there is no batch, as the trainer would go on to ask for some.

    The feed starts over only once its loader is known to train, and the data may end before that.
    """
    found = original(trainer, *args, **kwargs)
    if not found[0]:
        trainer.control.should_epoch_stop = True
    return found


def _log_only(original: Call, trainer: Any, *args: Any, **kwargs: Any) -> Any:
    """Keep a trial from writing, removing or uploading checkpoints, and from evaluating."""
    trainer.control.should_save = trainer.control.should_evaluate = False
    return original(trainer, *args, **kwargs)


def _nothing(*_: Any, **__: Any) -> None:
    """Stand for a method that is left out."""


def _run_shortly(
    plan: RehearsalPlan, original: Call, trainer: Any, *args: Any, **kwargs: Any
) -> Any:
    updates = _updates(trainer.args, plan)
    counts = {
        "steps_in_epoch": updates * trainer.args.gradient_accumulation_steps,
        "num_update_steps_per_epoch": updates,
    }
    short = {name: min(kwargs.get(name, most), most) for name, most in counts.items()}
    return original(trainer, *args, **{**kwargs, **short})


def _shorten_lightning(trainer: Any, plan: RehearsalPlan) -> None:
    """Make a Lightning trainer's epochs few and short, each followed by a validation.

    Limits that are 0 stay so, because they switch a stage off. The program's number of epochs is
    kept if it is smaller.
    """
    batches = max(plan.batches, trainer.accumulate_grad_batches)
    for name in ("train", "val", "test", "predict"):
        own = getattr(trainer, f"limit_{name}_batches")
        if own:  # 0 leaves a stage out
            cut = batches if name == "train" else plan.other_batches
            setattr(
                trainer, f"limit_{name}_batches", min(own, cut) if isinstance(own, int) else cut
            )
    trainer.val_check_interval, trainer.check_val_every_n_epoch = 1.0, 1
    own, most = trainer.fit_loop.max_epochs, plan.epochs
    trainer.fit_loop.max_epochs = most if own in {None, -1} else min(own, most)
    trainer.fit_loop.min_epochs = min(trainer.fit_loop.min_epochs or 0, most)


def _shorten_transformers(arguments: Any, plan: RehearsalPlan) -> None:
    """Make a Hugging Face trainer's epochs few, each followed by what the program does at all.

    Evaluating and saving by steps happen at the end of each short epoch.
    """
    updates = _updates(arguments, plan)
    if arguments.max_steps > 0:
        arguments.max_steps = min(arguments.max_steps, plan.epochs * updates)
    arguments.num_train_epochs = min(arguments.num_train_epochs, plan.epochs)
    arguments.eval_steps = arguments.save_steps = updates


def _updates(arguments: Any, plan: RehearsalPlan) -> int:
    return -(-plan.batches // int(arguments.gradient_accumulation_steps))
