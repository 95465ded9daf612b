"""A best.yaml in a script of Hugging Face: ``Trainer(callbacks=[AutotuneCallback("best.yaml")])``.

The constructor applies the file. The trainer's events come too late: at the first one it has built
its loader and its optimizer.
"""

from pathlib import Path

from transformers import TrainerCallback

from autotune import apply


class AutotuneCallback(TrainerCallback):
    """Trains with a best.yaml; under ``autotune search`` and ``autotune run`` it does nothing.

    Args:
        path: The file that a search wrote.
        larger_batch: Whether to apply the file's config with a larger batch.

    Raises:
        AutotuneError: As ``autotune.apply()`` does.
    """

    def __init__(self, path: str | Path = "best.yaml", *, larger_batch: bool = False) -> None:
        super().__init__()
        apply(path, larger_batch=larger_batch)
