"""Formats: best.yaml in the words of another tool, each described by one file in ``templates/``.

Such a file, ``NAME.yaml``, has these keys:

- ``tool``: what users call the tool.
- ``renamed``: the tool's name of each setting that it has under another one. A dot nests it.
- ``by_value``: what to write for a value of a setting, as a mapping of the tool's settings, or why
  there is nothing, as a clause. A value of ``devices`` may be named by its strategy, and its number
  of ranks is ``$ranks``. Of options that are joined, as in ``a+b``, each counts. ``*`` stands for
  any other value, ``$value`` for the value itself, and ``$device`` for ``cpu`` or ``gpu``.
- ``left_out``: why the tool has no such setting, as a clause.
- ``besides``: what a setting needs in addition to what is written, as a clause.
- ``applies_all``: whether the file makes ``autotune run`` apply everything.
- ``template``: the file as a template of jinja2, which gets the tool's ``settings``, the
  ``config``, its ``ranks``, the ``device``, the ``machine``, the ``program``'s command line, the
  path of the ``best`` config's file, and the variables that it sets by the user's word
  (``allow_env``). Where the tool reads comments, the first lines say that autotune wrote it: then
  ``-o`` may write it again. A snippet does not: it is put into programs.

No change is dropped silently: what a format cannot say is listed with the reason.
"""

from __future__ import annotations

import shlex
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from string import Template
from typing import Any

import yaml
from pydantic import BaseModel, ConfigDict

from autotune.errors import named
from autotune.knobs.space.tuning_variables import refuse_unless_allowed, unlisted
from autotune.program.config import KnobValue
from autotune.program.domain import parts_of, ranks_in
from autotune.results.bestfile import BestFile

ANY = "*"
Settings = dict[str, Any]  # by the names that the tool gives them


@dataclass(frozen=True)
class Export:
    """A config in another tool's words.

    Attributes:
        left_out: Changes that it does not say, with the reasons as clauses.
        besides: What changes that it says need in addition, as clauses.
    """

    text: str
    left_out: Mapping[str, str] = field(default_factory=dict)
    besides: Mapping[str, str] = field(default_factory=dict)

    @property
    def sentences(self) -> list[str]:
        """What users must know who take the text."""
        left_out = [f"Left out: {change} ({why})." for change, why in self.left_out.items()]
        return [*left_out, *(f"Besides: {one} ({why})." for one, why in self.besides.items())]


class Format(BaseModel):
    """What a file in ``templates/`` says; the keys are described at the module."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    tool: str
    renamed: Mapping[str, str] = {}
    by_value: Mapping[str, Mapping[str, Settings | str]] = {}
    left_out: Mapping[str, str] = {}
    besides: Mapping[str, str] = {}
    applies_all: bool = False
    template: str

    def export(self, best: BestFile, path: Path, allow_env: Collection[str] = ()) -> Export:
        """Return a config in the tool's words.

        Args:
            path: Where the best.yaml lies, as the text names it.
            allow_env: Variables that the text may set although they are not known to tune.

        Raises:
            UsageError: It would set others.
        """
        if self.applies_all:
            best.use(path, allow_env)
            refuse_unless_allowed(best.typed_variables, allow_env, str(path))
        settings: Settings = {}
        left_out, besides = dict[str, str](), dict[str, str]()
        for setting, value in {} if self.applies_all else dict(best.applied.changes()).items():
            answer = self.answer(setting, value, _device(best))
            if isinstance(answer, str):
                left_out[f"{setting}={value}"] = answer
            else:
                merge(settings, answer)
                if setting in self.besides:
                    besides[f"{setting}={value}"] = _filled(self.besides[setting], value, "")
        factor = best.lr_factor
        if factor != 1.0 and not self.applies_all:
            left_out["learning rate"] = f"multiply it by {factor:g}, as the larger batch asks for"
        return Export(self._text(settings, best, path), left_out, besides)

    def answer(self, setting: str, value: KnobValue, device: str) -> Settings | str:
        """Return the tool's settings for one of ours, or why there are none, as a clause.

        Args:
            device: Where the program computes: ``cpu`` or ``gpu``.
        """
        if setting in self.renamed:
            answer: Any = value
            for part in reversed(self.renamed[setting].split(".")):
                answer = {part: answer}
            return dict(answer)
        by_value = self.by_value.get(setting, {})
        parts = str(value).split("+")
        if len(parts) > 1 and parts[0] in by_value:
            joined: Settings = {}
            for one in (self.answer(setting, part, device) for part in parts):
                if isinstance(one, str):
                    return one
                merge(joined, one)
            return joined
        unknown = self.left_out.get(setting, f"{self.tool} has no setting for it")
        strategy = parts_of(value)[0] if setting == "devices" else ANY
        others = by_value.get(strategy, by_value.get(ANY, unknown))
        found = by_value.get(str(value), others)
        filled = _filled(found, value, device)
        return filled if isinstance(filled, str) else dict(filled)

    def _text(self, settings: Settings, best: BestFile, path: Path) -> str:
        from jinja2 import Environment, StrictUndefined

        environment = Environment(  # noqa: S701 - the files are no HTML
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
            keep_trailing_newline=True,
        )
        environment.filters |= {"yaml": yaml.safe_dump, "python": repr}
        environment.policies["json.dumps_kwargs"] = {"sort_keys": False}
        return environment.from_string(self.template).render(
            settings=settings,
            config=best.applied.config,
            ranks=ranks_in(best.applied.config),
            device=_device(best),
            machine=best.made_on,
            best=shlex.quote(str(path)),
            allow_env=",".join(unlisted(best.variables)),
            # The template has the "--" that may stand before it; quoted, it ends no line
            program=shlex.join(shlex.split(best.program.removeprefix("-- "))),
        )


@cache
def formats() -> tuple[str, ...]:
    """Return the names of all formats, as users type them."""
    found = files("autotune.exports").joinpath("templates").iterdir()
    return tuple(sorted(one.name.removesuffix(".yaml") for one in found))


def format_named(name: str) -> Format:
    """Return a format by its name; a wrong one raises a ``UsageError`` with the names."""
    file = named("format", name, {one: f"{one}.yaml" for one in formats()})
    text = files("autotune.exports").joinpath("templates", file).read_text(encoding="utf-8")
    return Format.model_validate(yaml.safe_load(text))


def _device(best: BestFile) -> str:
    return "cpu" if best.facts.device == "cpu" else "gpu"


def _filled(answer: Any, value: KnobValue, device: str) -> Any:
    """Return an answer with the setting's value and the device in their places."""
    if isinstance(answer, Mapping):
        return {name: _filled(part, value, device) for name, part in answer.items()}
    if answer == "$value":
        return value
    if answer == "$ranks":
        return parts_of(value)[1]
    if isinstance(answer, str):
        ranks = parts_of(value)[1] if "$ranks" in answer else 1
        words = {"value": value, "device": device, "DEVICE": device.upper()}
        return Template(answer).safe_substitute(words, ranks=ranks)
    return answer


def merge(settings: Settings, more: Settings) -> None:
    """Add settings to others; those that hold settings themselves are merged alike."""
    for name, value in more.items():
        if isinstance(value, dict) and isinstance(settings.get(name), dict):
            merge(settings[name], value)
        else:
            settings[name] = value
