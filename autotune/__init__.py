"""Find the fastest safe configuration for a PyTorch training program on this machine.

The public interface is ``search()``, ``resume()``, ``load()``, ``log()``, ``apply()``, ``Config``
and ``SearchResult``. Importing the package stays cheap, because all but ``Config`` is loaded when
it is first used.
"""

from __future__ import annotations

import warnings
from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.program.config import Config

if TYPE_CHECKING:
    from autotune.api import load, log, resume, search
    from autotune.results.result import SearchResult

__all__ = ["Config", "SearchResult", "apply", "load", "log", "resume", "search"]
__version__ = "0.1.0"


def apply(path: str | Path, *, allow_env: Collection[str] = (), larger_batch: bool = False) -> None:
    """Apply a best.yaml to this process.

    Call it before the model and the loaders are built. Loaders and optimizers that are built
    already get their settings, too, but no other batch. Flags that the file gives to the program
    must have been typed. It warns on stderr if hardware or versions differ from those of the
    search. Called again with the same file, it does nothing, nor under ``autotune search`` and
    ``autotune run``, because autotune already steers the program there.

    Args:
        path: The file that a search wrote.
        allow_env: Environment variables that the file may set although they are not known to tune,
            and may load code, such as ``["LD_PRELOAD"]``.
        larger_batch: Whether to apply the file's config with a larger batch.

    Raises:
        FileFormatError: The file cannot be read or has faults; the message names the lines.
        UsageError: The file sets such variables and they are not allowed, it needs several ranks,
            which only ``autotune run`` can start, or flags that were not typed, it changes the
            batch too late, another file was applied before, or this environment's torch is too old.
    """
    from autotune.program.environment import require_torch

    require_torch()
    # Imports torch, which the parent process of a search must not do.
    from autotune.inside.train import apply as apply_inside

    allowed = [allow_env] if isinstance(allow_env, str) else allow_env
    apply_inside(Path(path), allowed, larger_batch=larger_batch)


def __dir__() -> list[str]:
    """List the public names, those that are imported on first use included."""
    return [*__all__, "__version__"]


def __getattr__(name: str) -> object:
    """Import the other public names on first use, because they need heavy packages."""
    if name in {"load", "log", "resume", "search"}:
        with warnings.catch_warnings():
            # In a notebook without ipywidgets, Optuna's tqdm warns of a bar that is never shown.
            warnings.filterwarnings("ignore", message="IProgress not found")
            from autotune import api

        return getattr(api, name)
    if name == "SearchResult":
        from autotune.results.result import SearchResult

        return SearchResult
    raise AttributeError(f"module 'autotune' has no attribute {name!r}")
