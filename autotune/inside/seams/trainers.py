"""The seam at trainers of other libraries: Lightning and Hugging Face run the loop themselves."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from contextlib import suppress
from functools import wraps
from typing import Any
from weakref import WeakSet

from autotune.inside.seams.base import Patches, Seam
from autotune.program.rehearsal import RehearsalPlan

FOREVER = 10**15  # steps
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


class TrainersSeam(Seam):
    """Keeps trainers in their first epoch in a rig, and sets how they accumulate gradients.

    They count steps by themselves, so a feed that never ends does not keep them from validating,
    saving and ending. They read batches ahead, so how many make a step is best left to them. Where
    a version of theirs lacks the methods below, it stays as it is: the program ends, and a search
    starts it again.

    Args:
        endless: The first epoch goes on for as long as it is wanted.
        rehearsal: Epochs are as short as this says, and end as the program wrote.

    Attributes:
        in_use: Which library's trainer runs the program's loop, empty for none.
    """

    def __init__(self, *, endless: bool, rehearsal: RehearsalPlan | None = None) -> None:
        self._endless = endless
        self._rehearsal = rehearsal
        self._patches = Patches()
        self._adopted: set[str] = set()
        self._running: WeakSet[Any] = WeakSet()
        self._steps: int | None = None
        self.in_use = ""

    @property
    def rehearses(self) -> bool:
        """Trainers are told of short epochs when they begin."""
        return self._rehearsal is not None

    def adopt(self) -> None:
        """Change the trainers that the program has imported by now."""
        for name, library in MODULES.items():
            module = sys.modules.get(name)
            if name in self._adopted or not hasattr(module, "Trainer"):
                continue
            self._adopted.add(name)
            if library == TRANSFORMERS:
                self._adopt_transformers(module.Trainer)  # type: ignore[union-attr]
            else:
                loops = importlib.import_module(f"{name}.loops.training_epoch_loop")
                self._adopt_lightning(module.Trainer, loops._TrainingEpochLoop)  # type: ignore[union-attr]  # noqa: SLF001

    def prepare(self, library: str) -> None:
        """Change a library's trainer before the program imports it."""
        for name, its in MODULES.items():
            if its == library:
                with suppress(ImportError):
                    importlib.import_module(name)
        self.in_use = library
        self.adopt()

    @property
    def bound(self) -> str:
        """How many steps the running trainer was told to make, empty where epochs end it."""
        for trainer in self._running:
            arguments = getattr(trainer, "args", None)
            steps = getattr(trainer if arguments is None else arguments, "max_steps", -1)
            by_epochs = arguments is None and getattr(trainer, "max_epochs", None) not in {None, -1}
            if steps > 0 and not by_epochs:
                return f"max_steps={steps} of its {type(trainer).__name__}"
        return ""

    def launch(self, ranks: int, nodes: int) -> None:
        """Have Lightning take all ranks that were launched; by itself it takes those it is told of.

        Args:
            ranks: On this machine.
            nodes: Machines.
        """
        for name, owner in LIGHTNING_TAKES_DEVICES:
            with suppress(ImportError):
                module = importlib.import_module(name)
                self._give_devices(getattr(module, owner), ranks, nodes)

    def _give_devices(self, owner: Any, ranks: int, nodes: int) -> None:
        original = owner.__init__

        @wraps(original)
        def init(its: Any, *args: Any, **kwargs: Any) -> None:
            if kwargs.get("strategy", "auto") == "auto":
                kwargs["strategy"] = "ddp"
            original(its, *args, **{**kwargs, "devices": ranks, "num_nodes": nodes})

        self._patches.replace(owner, "__init__", init)

    def accumulate(self, steps: int) -> None:
        """Have running trainers, and those to come, make a step of so many batches."""
        self._steps = steps
        for trainer in self._running:
            self._set_steps(trainer)

    def _begins(self, trainer: Any, library: str) -> None:
        self.in_use = library
        self._running.add(trainer)
        self._set_steps(trainer)
        if self._rehearsal is not None and library == LIGHTNING:
            _shorten_lightning(trainer, self._rehearsal)
        elif self._rehearsal is not None:
            _shorten_transformers(trainer.args, self._rehearsal)

    def _set_steps(self, trainer: Any) -> None:
        if self._steps is None:
            return
        if hasattr(trainer, "accumulate_grad_batches"):
            trainer.accumulate_grad_batches = self._steps
        else:
            trainer.args.gradient_accumulation_steps = self._steps

    def _before(self, owner: Any, method: str, library: str) -> None:
        """Know a trainer when it begins."""
        original: Callable[..., Any] = getattr(owner, method)
        seam = self

        @wraps(original)
        def begin(trainer: Any, *args: Any, **kwargs: Any) -> Any:
            seam._begins(trainer, library)
            return original(trainer, *args, **kwargs)

        self._patches.replace(owner, method, begin)

    def _adopt_lightning(self, trainer: Any, loop: Any) -> None:
        self._before(trainer, "fit", LIGHTNING)
        if not self._endless or not hasattr(loop, "_num_ready_batches_reached"):
            return
        original = loop.on_run_start
        seam = self

        def on_run_start(epoch: Any, fetcher: Any) -> None:
            seam._begins(epoch.trainer, LIGHTNING)  # its fit() may have begun before it was known
            original(epoch, fetcher)
            if fetcher.length is not None:
                fetcher.length = FOREVER

        self._patches.replace(loop, "on_run_start", on_run_start)
        self._patches.replace(loop, "_is_training_done", property(lambda _epoch: False))
        self._patches.replace(loop, "_num_ready_batches_reached", lambda _epoch: False)
        self._patches.replace(loop, "_should_check_val_fx", lambda _epoch, _fetcher: False)

    def _adopt_transformers(self, trainer: Any) -> None:
        self._before(trainer, "train", TRANSFORMERS)
        original = getattr(trainer, "_run_epoch", None)
        if original is None:
            return
        if self._rehearsal is not None:
            self._cut_epochs(trainer, self._rehearsal)
        if not self._endless:
            return
        seam = self

        def run_epoch(its: Any, *args: Any, **kwargs: Any) -> Any:
            seam._begins(its, TRANSFORMERS)  # so may its train()
            its.state.max_steps = FOREVER
            counts = {"steps_in_epoch": FOREVER, "num_update_steps_per_epoch": FOREVER}
            return original(its, *args, **{**kwargs, **counts})

        self._patches.replace(trainer, "_run_epoch", run_epoch)
        self._leave_out(trainer, "_maybe_log_save_evaluate", _nothing_to_save)
        self._leave_out(trainer, "_save_checkpoint", None)
        batches = trainer.get_batch_samples

        def get_batch_samples(its: Any, *args: Any, **kwargs: Any) -> Any:
            found = batches(its, *args, **kwargs)
            if not found[0]:  # before its loader is known, an epoch does end
                its.control.should_epoch_stop = True
            return found

        self._patches.replace(trainer, "get_batch_samples", get_batch_samples)

    def _cut_epochs(self, trainer: Any, plan: RehearsalPlan) -> None:
        original = trainer._run_epoch  # noqa: SLF001 - by which it counts the batches of an epoch

        def run_epoch(its: Any, *args: Any, **kwargs: Any) -> Any:
            updates = _updates(its.args, plan)
            counts = {
                "steps_in_epoch": updates * its.args.gradient_accumulation_steps,
                "num_update_steps_per_epoch": updates,
            }
            short = {name: min(kwargs.get(name, most), most) for name, most in counts.items()}
            return original(its, *args, **{**kwargs, **short})

        self._patches.replace(trainer, "_run_epoch", run_epoch)

    def _leave_out(self, owner: Any, name: str, before: Callable[[Any], None] | None) -> None:
        """Call a method after something, or not at all."""
        original = getattr(owner, name, None)
        if original is None:
            return

        def method(its: Any, *args: Any, **kwargs: Any) -> Any:
            if before is None:
                return None
            before(its)
            return original(its, *args, **kwargs)

        self._patches.replace(owner, name, method)


def _nothing_to_save(trainer: Any) -> None:
    """A trial writes no checkpoint, removes none, uploads none, and stops for no evaluation."""
    trainer.control.should_save = trainer.control.should_evaluate = False


def _shorten_lightning(trainer: Any, plan: RehearsalPlan) -> None:
    """Make a trainer's epochs few and short, with what it does after each."""
    batches = max(plan.batches, trainer.accumulate_grad_batches)
    for name in ("train", "val", "test", "predict"):
        if getattr(trainer, f"limit_{name}_batches"):  # 0 leaves a stage out
            cut = batches if name == "train" else plan.other_batches
            setattr(trainer, f"limit_{name}_batches", cut)
    trainer.val_check_interval, trainer.check_val_every_n_epoch = 1.0, 1
    own = trainer.fit_loop.max_epochs
    trainer.fit_loop.max_epochs = plan.epochs if own in {None, -1} else min(own, plan.epochs)
    trainer.fit_loop.min_epochs = min(trainer.fit_loop.min_epochs or 0, plan.epochs)


def _shorten_transformers(arguments: Any, plan: RehearsalPlan) -> None:
    """Make a trainer's epochs few, and have it evaluate and save after each what it does ever."""
    updates = _updates(arguments, plan)
    if arguments.max_steps > 0:
        arguments.max_steps = min(arguments.max_steps, plan.epochs * updates)
    arguments.num_train_epochs = min(arguments.num_train_epochs, plan.epochs)
    arguments.eval_steps = arguments.save_steps = updates


def _updates(arguments: Any, plan: RehearsalPlan) -> int:
    """Steps in a short epoch."""
    return -(-plan.batches // int(arguments.gradient_accumulation_steps))
