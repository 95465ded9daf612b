"""What programs do with which a setting changes the training, and what autotune keeps the same.

Each is a habit of ``tests/programs/planted.py``. ``test_planted.py`` shows that the comparison
finds each fault as it says here; ``docs/reference/same-training.md`` has them as tables.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from autotune.program.config import KnobValue

FoundBy = Literal[
    "other samples",
    "losses",
    "gradients",
    "weights",
    "buffers",
    "learning rates",
    "saved values",
    "an error",
]
Changes = Mapping[str, KnobValue]


@dataclass(frozen=True)
class Fault:
    """What a program does with which a setting would change its training.

    Attributes:
        says: What it does, for users.
        changes: The setting, and what it needs to act.
        found_by: What the comparison says.
        habit: Name of the habit in ``planted.py``, if it is not that of the fault.
        message: What the error says.
    """

    says: str
    changes: Changes
    found_by: FoundBy
    habit: str = ""
    message: str = ""


@dataclass(frozen=True)
class Kept:
    """What a program may do because autotune keeps its training the same.

    Attributes:
        says: What it does, for users.
        changes: The setting, and what it needs to act.
        why: What autotune does about it, for users.
    """

    says: str
    changes: Changes
    why: str


WORKERS: Changes = {"workers": 2}
SPAWNED: Changes = {"worker_start_method": "spawn", "workers": 1}
AGAIN: Changes = {"activation_checkpointing": "all"}
LAYOUT: Changes = {"memory_format": "channels_last"}
FUSED: Changes = {"optimizer": "fused"}
PARTS: Changes = {"accumulation_steps": 2, "batch_size": 8}
RANKS: Changes = {"devices": "ddp-2", "batch_size": 8}
SHARDS: Changes = {"devices": "fsdp-2", "batch_size": 8}

FAULTS: dict[str, Fault] = {
    "generator": Fault("The dataset holds a random generator", WORKERS, "other samples"),
    "global": Fault("Items draw from a generator of their module", WORKERS, "other samples"),
    "collate": Fault("`collate_fn` draws from such a generator", WORKERS, "other samples"),
    "cache": Fault("A cache keeps items after augmentation", WORKERS, "other samples"),
    "file": Fault(
        "Items are the next lines of a file that the dataset holds open", WORKERS, "other samples"
    ),
    "curriculum": Fault(
        "The loop changes the dataset within an epoch", WORKERS, "other samples"
    ),
    "sampler": Fault(
        "The loop changes the order of samples within an epoch", WORKERS, "other samples"
    ),
    "init": Fault("`worker_init_fn` changes what is read", WORKERS, "other samples"),
    "in place": Fault(
        "The loop changes images in place that the dataset holds", WORKERS, "other samples"
    ),
    "reports": Fault("The loop reads what items leave in the dataset", WORKERS, "losses"),
    "differentiated": Fault(
        "The same, in steps by hand from what `torch.autograd.grad` returns", WORKERS, "losses"
    ),
    "embeds": Fault("Items are computed by the model in training", WORKERS, "losses"),
    "process": Fault(
        "Items can be read in the main process only", WORKERS, "an error",
        message="reads in one process only",
    ),
    "global level": Fault(
        "The loop changes a global variable that items read", WORKERS, "other samples"
    ),
    "global ahead": Fault(
        "The same, and a thread reads batches ahead", WORKERS, "other samples"
    ),
    "lambda": Fault(
        "The dataset holds a lambda function", SPAWNED, "an error", message="Can't pickle local"
    ),
    "block draws": Fault("A block holds a generator", AGAIN, "weights"),
    "codes": Fault("A block moves parameters that are not trained", AGAIN, "buffers"),
    "block counts": Fault("A block counts its calls", AGAIN, "weights"),
    "block decays": Fault("A block changes its weights when it is called", AGAIN, "weights"),
    "argument": Fault(
        "A block changes its argument in place", AGAIN, "an error",
        message="RuntimeError: one of the variables",
    ),
    "collects": Fault(
        "Hooks collect features, which are cleared before the backward pass", AGAIN, "an error",
        message="backward through the graph a second time",
    ),
    "temperature": Fault(
        "The loop changes a block between its passes", AGAIN, "weights"
    ),
    "shared weight": Fault("Two layers share memory by `.data`", LAYOUT, "losses"),
    "views": Fault("The loop changes weights by views that it keeps", LAYOUT, "losses"),
    "view": Fault(
        "`.view()` flattens the output of a convolution", LAYOUT, "an error",
        message="view size is not compatible",
    ),
    "noise": Fault("`randn_like` makes noise between convolutions", LAYOUT, "losses"),
    "sparse": Fault(
        "Embeddings have sparse gradients", FUSED, "an error",
        message="does not support sparse gradients",
    ),
    "clipping": Fault("Gradients are clipped by hand", PARTS, "weights"),
    "by hand": Fault("Gradients are cleared by hand", PARTS, "weights"),
    "decay": Fault("Weights decay by hand", PARTS, "losses"),
    "sharpness": Fault("Gradients are taken at moved weights (SAM)", PARTS, "weights"),
    "rate": Fault("The learning rate follows the number of the batch", PARTS, "learning rates"),
    "schedule": Fault(
        "A schedule of steps is planned by `len(loader)`", PARTS, "learning rates"
    ),
    "annealing": Fault("The loss follows the number of the batch", PARTS, "losses"),
    "adversaries": Fault("Two nets train in turn, one against the other (GAN)", PARTS, "gradients"),
    "skips": Fault("Every third batch is left out", PARTS, "losses"),
    "average": Fault("Weights averaged by hand are saved", PARTS, "saved values"),
    "teacher": Fault("A teacher follows the weights", PARTS, "losses"),
    "carried": Fault("State is carried from batch to batch", PARTS, "losses"),
    "contrastive": Fault("The loss compares samples of a batch", PARTS, "losses"),
    "tokens": Fault("The loss is a mean over what is not left out", PARTS, "losses"),
    "normalised": Fault("The model has BatchNorm", PARTS, "losses"),
    "inner step": Fault("The loss holds a step of the weights (MAML)", PARTS, "losses"),
    "ranks contrastive": Fault(
        "The loss compares samples of a batch", RANKS, "weights", "contrastive"
    ),
    "batch noise": Fault("The loop draws noise from its own generator", RANKS, "weights"),
    "ranks twice": Fault(
        "A model has two backward passes after one call", RANKS, "an error", "pair",
        "the ranks' models drifted apart",
    ),
    "sum": Fault("The loss sums over samples", RANKS, "weights"),
    "shards held": Fault(
        "A penalty uses weights taken before the first step", SHARDS, "weights", "held"
    ),
    "shards assigned": Fault("`.data` of weights is assigned to", SHARDS, "weights", "assigned"),
    "shards hook": Fault("A hook limits gradients", SHARDS, "weights", "hooked"),
}  # fmt: skip

KEPT: dict[str, Kept] = {
    "between epochs": Kept(
        "The dataset changes between epochs", WORKERS, "Workers are started anew."
    ),
    "batch norm": Kept(
        "BatchNorm in a block", AGAIN, "Its statistics are those of the first pass."
    ),
    "spectral norm": Kept(
        "Spectral norm in a block", AGAIN, "Its vectors are those of the first pass."
    ),
    "kept": Kept("A block keeps a part of the loss", AGAIN, "The part of the first pass counts."),
    "penalty": Kept("The loss holds a gradient", AGAIN, "Blocks are differentiated twice."),
    "tied": Kept("Two layers have one weight", LAYOUT, "It stays one weight."),
    "averaged": Kept(
        "`AveragedModel` follows the weights", PARTS, "It is updated once in a step."
    ),
    "scaler": Kept("The program has a `GradScaler`", PARTS, "It acts once in a step."),
    "closure": Kept("`step` gets a closure", PARTS, "It runs for each part of a step."),
    "two losses": Kept("Each batch has two backward passes", PARTS, "Both are weighed."),
    "centred": Kept("Gradients are centred by hand", PARTS, "Nothing: this adds up."),
}  # fmt: skip


def setting(one: Fault | Kept) -> str:
    """Return the name of the setting; the others are those that it needs."""
    return next(iter(one.changes))
