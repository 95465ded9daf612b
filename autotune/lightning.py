"""A best.yaml in a script of Lightning: ``Trainer(callbacks=[AutotuneCallback("best.yaml")])``.

The constructor applies the file. Lightning's hooks come too late: they are called when the trainer
has chosen its precision and asked for its loaders.
"""

from functools import partial
from pathlib import Path
from typing import Any

from autotune import apply

try:
    from lightning.pytorch import Callback
except ImportError:
    # The same library, as its older package
    from pytorch_lightning import Callback  # type: ignore[assignment]


class AutotuneCallback(Callback):
    """Trains with a best.yaml; under ``autotune search`` and ``autotune run`` it does nothing.

    Args:
        path: The file that a search wrote.
        larger_batch: Whether to apply the file's config with a larger batch.

    Raises:
        AutotuneError: As ``autotune.apply()`` does.
    """

    def __init__(self, path: str | Path = "best.yaml", *, larger_batch: bool = False) -> None:
        super().__init__()
        self._apply = partial(apply, path, larger_batch=larger_batch)
        self._apply()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Apply the file in a process that ``ddp_spawn`` starts and sends this to, too."""
        vars(self).update(state)
        self._apply()
