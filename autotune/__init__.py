"""autotune finds the fastest safe configuration for a PyTorch training program on this machine."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.program.config import Config

if TYPE_CHECKING:
    from autotune.api import search
    from autotune.results.result import SearchResult

__all__ = ["Config", "SearchResult", "apply", "search"]
__version__ = "0.1.0"


def apply(path: str | Path, *, allow_env: Collection[str] = ()) -> None:
    """Apply a best.yaml to this process; call it before the model and the loaders are built.

    Warns on stderr when hardware or versions differ from those of the search. Under ``autotune
    search`` and ``autotune run`` it does nothing: there autotune steers the program already.

    Args:
        path: The file that a search wrote.
        allow_env: Environment variables that it may set although they load code, such as
            ``["LD_PRELOAD"]``.

    Raises:
        FileFormatError: when the file is unreadable or wrong, with the lines.
        UsageError: when it sets variables that load code and are not allowed.
    """
    from autotune.inside.train import apply as apply_inside

    apply_inside(Path(path), [allow_env] if isinstance(allow_env, str) else allow_env)


def __getattr__(name: str) -> object:
    """Import what needs heavy packages only when it is used."""
    if name == "search":
        from autotune.api import search

        return search
    if name == "SearchResult":
        from autotune.results.result import SearchResult

        return SearchResult
    raise AttributeError(f"module 'autotune' has no attribute {name!r}")
