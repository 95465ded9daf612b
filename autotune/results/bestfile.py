"""best.yaml: its content, how it is written, and how it is read back.

Users may edit the file, so reading collects all faults and names each with its line. It holds all
that is needed to apply the config in a fresh process, without the study.
"""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Collection
from itertools import pairwise, takewhile
from pathlib import Path
from typing import Any, Literal

import yaml
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    SerializerFunctionWrapHandler,
    ValidationError,
    field_validator,
    model_serializer,
)

from autotune.errors import FileFormatError, UsageError, did_you_mean
from autotune.knobs import parse_value, registry
from autotune.knobs.space import yamlfile
from autotune.knobs.space.tuning_variables import refuse_unless_allowed
from autotune.machine.hardware import Hardware
from autotune.measurement.interval import Interval
from autotune.measurement.readings import Memory
from autotune.program.applied_config import AppliedConfig, ProgramTraits
from autotune.program.config import Config, KnobValue
from autotune.program.flags import AS_WRITTEN, KEYWORD, as_text
from autotune.program.lr import LrRule
from autotune.program.program import Program
from autotune.program.sources import Files, digest_of, listed

HEADER = """\
# Written by autotune. Train with it:  autotune run {name} {program}
# Values under 'config' may be edited; what differs from 'baseline' is applied.
"""


DIGITS = 12  # of a SHA-256, which tell an edited file from the one before
Side = Literal["baseline", "best"]
# A checkout of torch has 3,000 modules; what is more than this would not be read (yamlfile.py)
MOST_IMPORTS = 2000


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ProgramSection(_Section):
    """Which program was searched.

    Attributes:
        fingerprint: SHA-256 of the program's source, to notice changes.
        imports: The files of the user's that it imported, from its working directory, with the
            first digits of their SHA-256.
        ranks: Number of ranks that the command line starts; null for one process.
        traits: What its knobs depend on.
    """

    command: str
    fingerprint: str
    imports: dict[str, str] = Field(default_factory=dict)
    ranks: int | None = None
    traits: ProgramTraits

    @field_validator("command")
    @classmethod
    def _can_be_split(cls, command: str) -> str:
        shlex.split(command)  # it says what is wrong, such as a quote that nothing closes
        return command

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables that the command line sets before what it runs."""
        words = shlex.split(self.command)
        before = takewhile(lambda word: word != "-m" and ".py" not in word, words)
        pairs = (word.partition("=") for word in before)
        return {name: value for name, sets, value in pairs if sets and name.isidentifier()}

    def is_of(self, program: Program) -> bool:
        """Return whether the search was of a program, which may have changed or other arguments."""
        if program.fingerprint == self.fingerprint and not program.function:
            return True
        ours, theirs = (_subject(line, program.cwd) for line in (str(program), self.command))
        return ours == theirs

    def is_of_another_file(self, program: Program) -> bool:
        """Return whether the command names a Python file to run that is not that of a program."""
        names = {Path(_subject(self.command, program.cwd)[0]).name, program.file_name}
        return len(names) > 1 and all(name.endswith(".py") for name in names)

    def edited_imports(self, program: Program) -> list[str]:
        """Return which imports of a program have another content now; those that are gone do not.

        The file may have been moved, alone, to where they are elsewhere.
        """
        now = {name: digest_of(Path(program.cwd, name)) for name in self.imports}
        return [n for n, digest in now.items() if digest and digest[:DIGITS] != self.imports[n]]


def _subject(command: str, cwd: str) -> tuple[str, ...]:
    """Return what a command line runs: a script with its function, or a module; else the line.

    A script after a module belongs to it: the module may be a launcher, such as torch's.
    """
    module: tuple[str, ...] = ()
    for before, word in pairwise(["", *shlex.split(command)]):
        path, _, function = word.partition(":")
        if before == "-m" and not module:
            module = (word,)
        elif path.endswith(".pkl"):  # in the folder of a search, each of which has another one
            return (Path(path).name, function)
        elif path.endswith(".py"):
            return (*module, os.path.normpath(Path(cwd, path)), function)
    return module or (command,)


def imports_of(program: Program, files: Files) -> dict[str, str]:
    """Return what a best.yaml says of the files that a program has imported, the nearest first."""
    imports = {
        os.path.relpath(path, program.cwd): digest[:DIGITS]
        for path, digest in files.items()
        if path not in program.files
    }
    nearest = sorted(imports.items(), key=lambda one: (one[0].startswith(os.pardir), one[0]))
    return dict(nearest[:MOST_IMPORTS])


class OtherConfig(_Section):
    """A config that is not recommended, and why; what does not apply to it is left out.

    Attributes:
        live_speedup: As the search measured it, not confirmed.
        check_seconds: What ``autotune resume --may-change batch`` takes to check what it learns.
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
        edited: list[str] = [] if program is None else self.program.edited_imports(program)
        is_same = program is None or program.fingerprint == self.program.fingerprint
        if program is None or (is_same and not edited):
            return found
        if not is_same and self.program.is_of_another_file(program):
            found.append(
                f"{program.file_name} is another program than the one that was searched "
                f"({self.program.command}). Another config may be faster for it; search again."
            )
        else:
            names = listed([*map(_shown, edited)])
            which = f" Of what it imports: {names}." if names else ""
            found.append(
                f"The program has changed since the search ({self.program.command}).{which} "
                "Search again if the change matters to speed."
            )
        return found

    @property
    def variables(self) -> dict[str, str]:
        """The environment variables that users let it tune, with the values that it sets."""
        changes = self.applied.changes().items()
        return {k[1:]: str(v) for k, v in changes if k.startswith("$") and v != AS_WRITTEN}

    def use(self, path: Path, allow_env: Collection[str] = ()) -> list[str]:
        """Return what the file passes to the program besides autotune's knobs, one sentence each.

        A best.yaml may come from somebody else, so users are told about environment variables and
        arguments, and variables are refused that are not known to tune.

        Raises:
            UsageError: It sets such variables, and *allow_env* does not name all of them.
        """
        changes = {k: v for k, v in self.applied.changes().items() if v != AS_WRITTEN}
        variables = self.variables
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
