"""The seam at downloads: it notes where a program puts downloaded data.

Each trial starts with the user's files as they are, so it would download the data again. What the
first trial downloads to the places noted here can be kept for the later ones.

Covered: torchvision's data sets, ``torch.hub``, ``urllib.request.urlretrieve``. The caches of other
libraries lie in known places (``autotune/rig/fence/caches.py``).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from inspect import Signature, signature
from types import ModuleType
from typing import Any

from autotune.inside.hubs.after_import import AfterImport
from autotune.inside.hubs.patches import Patches, Seam

# By module: functions that download or unpack, with the parameters that name the target.
FUNCTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "torchvision.datasets.utils": {
        "download_url": ("root",),
        "download_file_from_google_drive": ("root",),
        "extract_archive": ("to_path",),
        "download_and_extract_archive": ("download_root", "extract_root"),
    },
    "torch.hub": {"download_url_to_file": ("dst",)},
    "urllib.request": {"urlretrieve": ("filename",)},
}


class DownloadsSeam(Seam):
    """Notes the places to which the program downloads."""

    def __init__(self) -> None:
        self.places: set[str] = set()
        self._patches = Patches()
        self._imports = AfterImport()

    def install(self) -> None:
        """Begin to watch, in libraries as soon as the program has imported them."""
        for name in FUNCTIONS:
            self._imports.wait_for(name, self._watch)

    def remove(self) -> None:
        """Put the functions back, and wait for no more imports."""
        self._imports.remove()
        self._patches.undo()

    def _watch(self, module: ModuleType) -> None:
        for name, parameters in FUNCTIONS[module.__name__].items():
            if hasattr(module, name):
                takes = signature(getattr(module, name))
                self._patches.wrap(module, name, partial(self._download, takes, parameters))

    def _download(
        self,
        takes: Signature,
        parameters: Sequence[str],
        original: Callable[..., Any],
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        with suppress(TypeError):  # wrong arguments: the original raises what is expected
            given = takes.bind(*args, **kwargs).arguments
            self._note(given.get(parameter) for parameter in parameters)
        return original(*args, **kwargs)

    def _note(self, places: Any) -> None:
        # Compared at the time of the call: the program may change its working directory.
        here = os.path.realpath(os.curdir)
        for place in places:
            if isinstance(place, (str, os.PathLike)):
                real = os.path.realpath(os.fspath(place))
                if not f"{here}{os.sep}".startswith(f"{real.rstrip(os.sep)}{os.sep}"):
                    self.places.add(real)
