"""Exporter: writes a best config in the words of another tool.

A member of the family is one file. It never drops a change silently: what its format cannot say is
listed with the reason.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from autotune.program.config import KnobValue
from autotune.results.bestfile import BestFile

Settings = Mapping[str, Any]  # by the names that the other tool gives them
Say = Callable[[KnobValue, BestFile], Settings | str]
# Knobs that are arguments of DataLoader, by those
LOADER: Mapping[str, Callable[[KnobValue], dict[str, KnobValue]]] = {
    "workers": lambda v: {"num_workers": v, "persistent_workers": bool(v)},
    "pinning": lambda v: {"pin_memory": v != "off"},
    "batch_size": lambda v: {"batch_size": v},
    "prefetch_factor": lambda v: {"prefetch_factor": v},
    "in_order": lambda v: {"in_order": v},
}


@dataclass(frozen=True)
class Export:
    """A config in another tool's words.

    Attributes:
        text: The file's content.
        left_out: Changes that it does not say, with the reasons as clauses.
    """

    text: str
    left_out: Mapping[str, str] = field(default_factory=dict)


class Exporter(ABC):
    """Base class of the family.

    Attributes:
        name: What users type after ``--to``.
        file_name: What such a file is usually called.
        tool: The tool that reads it, as users call it.
    """

    name: ClassVar[str]
    file_name: ClassVar[str]
    tool: ClassVar[str]

    @abstractmethod
    def export(self, best: BestFile) -> Export:
        """Return the config in the other tool's words.

        Raises:
            UsageError: The format cannot be written for this program at all.
        """


class SettingsExporter(Exporter):
    """An exporter whose format is a set of named settings.

    ``said`` maps each knob to a function that returns its settings, or why there are none for this
    value, as a clause.
    """

    said: ClassVar[Mapping[str, Say]]

    def export(self, best: BestFile) -> Export:
        """Return the changes as settings; of each other one, why it is not there."""
        found: dict[str, Any] = {}
        left_out = dict[str, str]()
        for knob, value in changes(best).items():
            say = self.said.get(knob)
            answer = f"{self.tool} has no setting for it" if say is None else say(value, best)
            if isinstance(answer, str):
                left_out[f"{knob}={value}"] = answer
            else:
                found = merged(found, answer)
        return Export(self.write(found, best), left_out | beyond_knobs(best))

    @abstractmethod
    def write(self, settings: Settings, best: BestFile) -> str:
        """Return the file's content."""


def changes(best: BestFile) -> dict[str, KnobValue]:
    """Return the knobs in which the config differs from the program as written."""
    return dict(best.applied.changes())


def loader_options(best: BestFile) -> dict[str, dict[str, KnobValue]]:
    """Return the arguments of DataLoader that each changed knob stands for."""
    return {knob: LOADER[knob](value) for knob, value in changes(best).items() if knob in LOADER}


def beyond_knobs(best: BestFile) -> dict[str, str]:
    """Return what ``autotune run`` does besides setting knobs, and the exported file does not."""
    left_out = {}
    if best.applied.changes().get("pinning") == "non-blocking":
        left_out["non_blocking"] = "copy batches by .to(device, non_blocking=True) in the script"
    factor = best.learning.lr_factor
    if factor != 1.0:
        left_out["learning rate"] = f"multiply it by {factor:g}, as the larger batch asks for"
    return left_out


def as_is(name: str) -> Say:
    """Return a function that says a knob's value under another name."""
    return lambda value, _: {name: value}


def in_script(reason: str) -> Mapping[str, Say]:
    """Return why the options of the DataLoader are not there, by knob."""
    return dict.fromkeys(LOADER, lambda *_: reason)


def by_value(settings: Mapping[KnobValue, Settings], reason: str) -> Say:
    """Return a function that looks a value up.

    Args:
        settings: By value.
        reason: Why there is nothing for any other value, as a clause.
    """
    return lambda value, _: settings.get(value, reason)


def merged(one: Mapping[str, Any], other: Mapping[str, Any]) -> dict[str, Any]:
    """Return two sets of settings as one; those that hold settings themselves are merged alike."""
    found = dict(one)
    for name, value in other.items():
        both = isinstance(value, Mapping) and isinstance(found.get(name), Mapping)
        found[name] = merged(found[name], value) if both else value
    return found
