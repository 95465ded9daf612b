"""What the user reads of a program that failed as it is written, by whose fault it is."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version
from platform import python_version
from typing import assert_never

from autotune.measurement.outcome import Cause, Ending

PACKAGES = ("autotune-torch", "torch")


def complaint(name: str, ending: Ending) -> str:
    """Return what to say; only evidence lets it name somebody.

    Args:
        name: The program's.
        ending: How it ended before anything was changed.
    """
    match ending.cause:
        case Cause.PROGRAM:
            return (
                f"{name} fails by itself, before autotune changed anything: {ending.reason}\n"
                f"{_sentence(ending.evidence).rstrip()}"
            )
        case Cause.AUTOTUNE:
            return (
                f"{name} trains by itself and not under autotune: a defect of autotune. Under "
                f"autotune it ended with: {ending.reason}\n{_sentence(ending.evidence)}Please "
                f"report it to autotune's authors, with the traceback above, what the program "
                f"does there, and these versions: {_versions()}."
            )
        case Cause.INPUT:
            mend = "Nobody types in a trial: give it the answer by a flag, a file or a variable."
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
    return f"{clause[:1].upper()}{clause[1:]}. " if clause else ""


def _versions() -> str:
    return ", ".join([*filter(None, map(_version, PACKAGES)), f"python {python_version()}"])


def _version(package: str) -> str:
    try:
        return f"{package} {version(package)}"
    except PackageNotFoundError:  # a checkout on the import path
        return ""
