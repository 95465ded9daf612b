"""The error text for a program that fails as it is written, worded by whose fault that is."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from platform import python_version
from typing import assert_never

from autotune.measurement.outcome import Cause, Ending

# A report of a defect needs the versions of these.
PACKAGES = ("autotune-torch", "torch")


def complaint(name: str, ending: Ending) -> str:
    """Return the message for a program that failed before autotune changed anything.

    The message blames the program or autotune only if a second start, without autotune's hooks,
    showed which of the two is the cause (``Ending.cause``). Otherwise it says that this is unclear
    and how the user can find out.

    Args:
        name: The program's short name, with which the message begins.
        ending: How the program ended under its own, unchanged config.
    """
    match ending.cause:
        case Cause.PROGRAM:
            return (
                f"{name} fails by itself, before autotune changed anything: {ending.reason}\n"
                f"{_sentence(ending.evidence).rstrip()}"
            )
        case Cause.AUTOTUNE:
            return (
                f"{name} trains by itself but not under autotune, which is a defect of autotune. "
                f"Under autotune it ended with: {ending.reason}\n{_sentence(ending.evidence)}"
                "Please report it to autotune's authors, with the traceback above, what the "
                f"program does there, and these versions: {_versions()}."
            )
        case Cause.INPUT:
            mend = "Nobody can type in a trial: pass the answer by a flag, a file or a variable."
            return (
                f"{name} cannot be measured: {ending.reason}\n{_sentence(ending.evidence) or mend}"
            )
        case Cause.UNCLEAR | None:
            return (
                f"{name} failed under autotune, and it is unclear whether it does so by itself: "
                f"{ending.reason}\n{_sentence(ending.evidence)}Run it once without autotune: if it "
                "trains, that is a defect of autotune, and its authors want to know."
            )
        case _:
            assert_never(ending.cause)


def _sentence(clause: str) -> str:
    """Return a clause as a sentence followed by a space; nothing for an empty clause."""
    return f"{clause[:1].upper()}{clause[1:]}. " if clause else ""


def _versions() -> str:
    """Return the versions that a defect report needs: autotune, torch and Python."""
    return ", ".join([*filter(None, map(_version, PACKAGES)), f"python {python_version()}"])


def _version(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:  # autotune is imported from a checkout that is not installed
        return ""
