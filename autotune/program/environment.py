"""Whether the environment that autotune runs in holds a PyTorch that it can tune.

Programs run under autotune's own interpreter, so this environment's torch trains them. torch itself
is not imported here; what the package's metadata says is enough. It is never installed or upgraded:
which torch is right depends on the driver and on the script, and is the user's to choose.
"""

from __future__ import annotations

import re
import sys
from importlib import metadata, util
from pathlib import Path

from autotune.errors import UsageError
from autotune.program.line.elsewhere import INSTALL

DISTRIBUTION = "autotune-torch"  # as pip calls what installs this package
# The oldest that passes `make compat`, whose table is in docs/start/install.md
OLDEST_TORCH = "2.6"
# What pipx and uv leave in the environments that they make for one tool
RECEIPTS = ("pipx_metadata.json", "uv-receipt.toml")
UVX_FOLDER = "archive-v0"  # of uv's cache, in which uvx makes an environment for one command
WHERE = (
    f"Install autotune where train.py's torch is: python {INSTALL} in a clone of it. "
    "Nothing was changed."
)


def require_torch() -> None:
    """Do nothing where this environment has a torch that autotune can tune.

    A torch without metadata, such as a build that lies on PYTHONPATH, is taken as it is.

    Raises:
        UsageError: It is missing, or too old, or this environment was made for autotune alone.
    """
    try:
        torch = metadata.distribution("torch")
    except metadata.PackageNotFoundError:
        if util.find_spec("torch") is not None:
            return
        raise UsageError(
            f"autotune needs PyTorch {OLDEST_TORCH} or later; this environment has none: "
            f"{sys.prefix}. {WHERE}"
        ) from None
    if release_of(torch.version) < release_of(OLDEST_TORCH):
        raise UsageError(
            f"autotune needs PyTorch {OLDEST_TORCH} or later; this environment has "
            f"{torch.version}. Nothing was changed."
        )
    prefix = Path(sys.prefix)
    if _is_of_one_tool(prefix) and Path(str(torch.locate_file(""))).is_relative_to(prefix):
        raise UsageError(
            "autotune runs in an environment that was made for it alone, as by pipx or uvx: "
            f"{prefix}. Its torch is not the one that your script trains with. {WHERE}"
        )


def clash_of_names() -> str:
    """Return a sentence on another distribution that installs a package ``autotune``, or has.

    It is empty if there is none. It reads what every installed distribution says of itself, which
    takes 0.3 s where there are 150: it is for errors and for the doctor.
    """
    owners = set(metadata.packages_distributions().get("autotune", ())) - {DISTRIBUTION}
    again = f"'python {INSTALL} --force-reinstall --no-deps' in a clone of autotune"
    if owners:
        names = " ".join(sorted(owners))
        return (
            f"Another distribution installs files of the same name, autotune: {names}. One "
            f"replaces files of the other. Type 'python -m pip uninstall {names}', and then "
            f"{again}."
        )
    if getattr(sys.modules["autotune"], "__file__", None) is None:
        return (
            "Files of autotune are missing, as after the removal of another distribution with "
            f"files of the same name. Type {again}."
        )
    return ""


def release_of(version: str) -> tuple[int, ...]:
    """Return the first two numbers of a version, such as those of ``2.6.0a0+git1234``."""
    return tuple(map(int, re.findall(r"\d+", version)[:2]))


def _is_of_one_tool(prefix: Path) -> bool:
    is_kept = any((prefix / receipt).exists() for receipt in RECEIPTS)
    return is_kept or prefix.parent.name == UVX_FOLDER
