"""A best.yaml in a script of Lightning: ``Trainer(callbacks=[AutotuneCallback("best.yaml")])``.

The constructor applies the file: hooks come late, as the trainer has chosen its precision by then.
A process that ``ddp_spawn`` starts is given the trainer as it is, and its first hook comes before
it builds optimizers and asks for batches.
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
        apply(path, larger_batch=larger_batch)
        self._apply = partial(apply, Path(path).absolute(), larger_batch=larger_batch)

    def setup(self, *_: Any, **__: Any) -> None:
        """Apply the file in processes that Lightning starts for itself, as by ``ddp_spawn``."""
        self._apply()
