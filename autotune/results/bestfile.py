"""best.yaml: its content, how it is written, and how it is read back.

Users may edit the file, so reading collects all faults and names each with its line. It holds all
that is needed to apply the config in a fresh process, without the study.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Collection
from itertools import takewhile
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    model_serializer,
)

from autotune.errors import FileFormatError, UsageError, did_you_mean
from autotune.knobs import parse_value, registry
from autotune.knobs.space import yamlfile
from autotune.machine.hardware import Hardware
from autotune.measurement.interval import Interval
from autotune.measurement.readings import Memory
from autotune.program.applied_config import AppliedConfig, ProgramTraits
from autotune.program.config import Config, KnobValue
from autotune.program.dangerous_variables import refuse_unless_allowed
from autotune.program.flags import AS_WRITTEN, KEYWORD, as_text
from autotune.program.lr import LrRule
from autotune.program.program import Program

HEADER = """\
# Written by autotune. Train with it:  autotune run {name} {program}
# Values under 'config' may be edited; what differs from 'baseline' is applied.
"""


Side = Literal["baseline", "best"]


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ProgramSection(_Section):
    """Which program was searched.

    Attributes:
        fingerprint: SHA-256 of the program's source, to notice changes.
        ranks: Number of ranks that the command line starts; null for one process.
        traits: What its knobs depend on.
    """

    command: str
    fingerprint: str
    ranks: int | None = None
    traits: ProgramTraits

    def is_of_another_file(self, program: Program) -> bool:
        """Return whether the command names a Python file to run that is not that of a program."""
        try:
            words = shlex.split(self.command)
        except ValueError:  # the file may have been edited
            return False
        before_module = takewhile(lambda word: word != "-m", words)
        names = (Path(word.partition(":")[0]).name for word in before_module)
        first = next((name for name in names if name.endswith(".py")), None)
        return (
            first is not None and program.file_name.endswith(".py") and program.file_name != first
        )


class OtherConfig(_Section):
    """A config that is not recommended, and why; what does not apply to it is left out.

    Attributes:
        live_speedup: As the search measured it, not confirmed.
        check_seconds: What ``autotune resume --check-learning`` takes to check what it learns.
        blame: Those of the changes that are to blame: one if it was found, else all.
    """

    changes: dict[str, KnobValue]
    live_speedup: Interval | None = None
    check_seconds: float | None = None
    blame: dict[str, KnobValue] = Field(default_factory=dict)
    why: str = ""

    @model_serializer(mode="wrap")
    def _without_empty(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        return {key: value for key, value in serialize(self).items() if value not in (None, "", {})}


class LearningSection(_Section):
    """What the config changes about learning.

    Attributes:
        lr_factor: Factor on the learning rate of the first optimizer.
        batch_size: Samples in one optimizer step; null if unknown.
        larger_batch: A faster config with larger steps that nobody checked; null if there is none.
        training: How the training compares with that of the program as written, for the user; empty
            if ``config`` changes nothing.
        refused: Configs that were seen to train something else, or to fail, and are not
            recommended.
    """

    lr_rule: LrRule
    lr_factor: float
    batch_size: dict[Side, int | None]
    note: str
    larger_batch: OtherConfig | None = None
    training: str = ""
    refused: tuple[OtherConfig, ...] = ()


class TrainingStepsSection(_Section):
    """How long the steps of the whole training take, estimated.

    Attributes:
        steps: How many steps it makes, where it counts these instead; null if unknown.
        seconds: Of baseline and best config, with starting and compiling.
    """

    epochs: float | None = None
    steps: float | None = None
    seconds: dict[str, float]
    note: str


class SearchSection(_Section):
    """How the search went.

    Attributes:
        objective: What the speedup is about: throughput, step-time, memory or energy.
        seconds: Wall time of the search, all sessions included.
        compile_seconds: What compiling adds to a run of ``config``; null if it does not compile.
        break_even_steps: Steps after which a run that compiles has caught up with the baseline;
            null if it never does.
        confirmed: Whether the config was confirmed to be faster in fresh processes.
    """

    objective: str = "throughput"
    trials: int
    seconds: float
    compile_seconds: float | None = None
    break_even_steps: int | None = None
    verdict: str
    confirmed: bool
    processes: int
    date: str


class BestFile(_Section):
    """The content of a best.yaml.

    ``config`` and ``baseline`` hold a value per knob. Only differences between them are applied, so
    users can edit ``config``; the other sections explain where it comes from.

    Attributes:
        speedup: Confirmed over the baseline, with its 95 % interval; 1 if no gain was confirmed.
        throughput: Samples per second, end to end.
        memory: Peak memory in bytes; null where nothing reports it.
    """

    version: Literal[2] = 2
    program: ProgramSection
    config: dict[str, KnobValue]
    baseline: dict[str, KnobValue]
    speedup: Interval
    throughput: dict[Side, float]
    memory: dict[Side, Memory]
    learning: LearningSection
    training_steps: TrainingStepsSection | None = None
    hardware: Hardware
    versions: dict[str, str] = Field(default_factory=dict)
    search: SearchSection

    @property
    def applied(self) -> AppliedConfig:
        """The config with everything that a fresh process needs to apply it."""
        return AppliedConfig(
            config=Config(self.config),
            baseline=Config(self.baseline),
            traits=self.program.traits,
            lr_rule=self.learning.lr_rule,
        )

    def warnings(self, hardware: Hardware, program: Program | None) -> list[str]:
        """Return what differs from where the file was made, one sentence each."""
        there = Hardware(**{**vars(self.hardware), "versions": self.versions})
        found = [
            f"{difference}. Another config may be faster here; search again."
            for difference in there.differences(hardware)
        ]
        if program is None or program.fingerprint == self.program.fingerprint:
            return found
        if self.program.is_of_another_file(program):
            found.append(
                f"{program.file_name} is another program than the one that was searched "
                f"({self.program.command}). Another config may be faster for it; search again."
            )
        else:
            found.append(
                f"The program has changed since the search ({self.program.command}). "
                "Search again if the change matters to speed."
            )
        return found

    def use(self, path: Path, allow_env: Collection[str] = ()) -> list[str]:
        """Return what the file passes to the program besides autotune's knobs, one sentence each.

        A best.yaml may come from somebody else, so users are told about environment variables and
        arguments, and variables that make a process load code are refused.

        Raises:
            UsageError: when it sets other variables that load code; see ``dangerous_variables``.
        """
        changes = {k: v for k, v in self.applied.changes().items() if v != AS_WRITTEN}
        variables = {k[1:]: str(value) for k, value in changes.items() if k.startswith("$")}
        arguments = {}  # by the names of the program's flags and keywords
        for knob, value in changes.items():
            if (flag := self.program.traits.flags.get(knob)) is not None:
                own = value if knob in flag.spellings else registry()[knob].format_flag(value, flag)
                arguments[flag.name.removeprefix(KEYWORD)] = as_text(own)
        allowed = {name.removeprefix("$") for name in allow_env}
        refuse_unless_allowed(variables, allowed, str(path))
        said = {"sets environment variables": variables, "passes to the program": arguments}
        return [
            f"{path.name} {what}: {' '.join(f'{_shown(n)}={_shown(v)}' for n, v in values.items())}"
            for what, values in said.items()
            if values
        ]

    def text(self, name: str = "best.yaml") -> str:
        """Return the file's content."""
        data = self.model_dump(mode="json", exclude={"hardware": {"versions"}})
        body = yaml.safe_dump(data, sort_keys=False, allow_unicode=True, width=100)
        # A line break in an argument would end the comment and spoil the YAML.
        on_one_line = " ".join(self.program.command.split())
        return HEADER.format(name=name, program=on_one_line) + body

    def write(self, path: Path) -> None:
        """Write the file; readers see the old or the new one. Missing folders are created."""
        path.parent.mkdir(parents=True, exist_ok=True)
        part = path.with_name(f".{path.name}.{os.getpid()}.part")
        try:
            part.write_text(self.text(path.name), encoding="utf-8")
            part.replace(path)
        except OSError:
            part.unlink(missing_ok=True)
            raise


def _shown(value: str) -> str:
    """Return a value for a message: quoted if it is empty, contains spaces or cannot be printed.

    It may be somebody else's, and control characters could change what a terminal shows.
    """
    return value if value.isprintable() and value and " " not in value else repr(value)


def read(path: Path) -> BestFile:
    """Read a best.yaml, which users may have edited.

    Raises:
        FileFormatError: when it is unreadable, of another version, or wrong; it lists every fault
            with its line.
    """
    file = yamlfile.read(path)
    version, ours = file.data.get("version"), BestFile.model_fields["version"].default
    if isinstance(version, int) and version != ours:
        is_later = version > ours
        newer = "Install a newer autotune: git pull and pip install . in your clone of it."
        mend = newer if is_later else "Search again."
        raise FileFormatError(
            f"{file.where('version')}: this file has version {version}, but this autotune reads "
            f"version {ours}. {mend}"
        )
    data = dict(file.data)
    faults = [
        *_parse_knobs(file, data, "config"),
        *_parse_knobs(file, data, "baseline"),
    ]
    try:
        # JSON mode makes tuples of lists and members of texts; dates and the like become text
        best = BestFile.model_validate_json(json.dumps(data, default=str))
    except ValidationError as error:
        faults += [_fault(file, dict(fault)) for fault in error.errors()]
    if faults:
        raise FileFormatError("\n".join(faults))
    return best


def _parse_knobs(file: yamlfile.YamlFile, data: dict[str, Any], section: str) -> list[str]:
    """Replace the values of a section in *data* by what knobs parse them to; return the faults."""
    faults = []
    entries = data.get(section)
    if not isinstance(entries, dict):
        return []
    parsed: dict[str, KnobValue] = {}
    for name, raw in entries.items():
        try:
            parsed[str(name)] = parse_value(str(name), raw, file.where(section, str(name)))
        except UsageError as error:
            faults.append(str(error))
    data[section] = parsed
    return faults


def _fault(file: yamlfile.YamlFile, fault: dict[str, Any]) -> str:
    keys = tuple(str(part) for part in fault["loc"])
    name = ".".join(keys)
    match fault["type"]:
        case "extra_forbidden" | "unexpected_keyword_argument":
            model: Any = BestFile
            for key in keys[:-1]:
                field = getattr(model, "model_fields", {}).get(key)
                model = field.annotation if field is not None else None
            known = getattr(model, "model_fields", getattr(model, "__dataclass_fields__", {}))
            hint = did_you_mean(keys[-1], known)
            return f"{file.where(*keys)}: Unknown key '{name}'.{hint}"
        case "missing":
            return f"{file.where(*keys)}: '{name}' is missing."
        case _:
            return f"{file.where(*keys)}: '{name}': {fault['msg']}, found {fault['input']!r}."
