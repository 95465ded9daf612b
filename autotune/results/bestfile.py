"""best.yaml: its content, how it is written, and how it is read back.

The file is a dozen lines that people read, edit and copy to other folders: what to change, what the
program does without that, and the facts by which a fresh process finds what the settings act on.
Only what these settings need is kept. How the search came to it is in ``result.json`` in the
search's folder. Reading collects all faults and names each with its line.

Of a search that several machines shared, it names those that the claim rests on, and has a line for
each other kind of machine in the study, with what such a machine takes instead.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Collection, Iterator, Mapping
from itertools import chain, takewhile
from pathlib import Path
from textwrap import indent
from typing import Annotated, Any, Final, Literal

import yaml
from pydantic import AfterValidator, BaseModel, ConfigDict, ValidationError, field_validator

from autotune.errors import FileFormatError, UsageError, did_you_mean
from autotune.knobs import KNOBS, parse_value, registry
from autotune.knobs.space import yamlfile
from autotune.knobs.space.tuning_variables import refuse_unless_allowed
from autotune.machine import hardware
from autotune.machine.hardware import Hardware
from autotune.measurement.interval import Interval
from autotune.program.applied_config import (
    FACTS_NEEDED,
    LOADER_OPTIONS,
    AppliedConfig,
    ProgramTraits,
)
from autotune.program.config import Config, KnobValue
from autotune.program.flags import AS_WRITTEN, KEYWORD, as_text
from autotune.program.lr import PARTS, LrRule
from autotune.program.program import Program
from autotune.results.learning import Learning
from autotune.results.searched_program import SearchedProgram, shown
from autotune.results.wording import factor

HEADER = """\
# Written by autotune. {what}:  autotune run {name} {program}
"""
TRAIN, TRY, NOTHING = "Train with it", "Not confirmed. Try it", "It changes nothing"

VERSION: Final = 3
SHARED_VERSION: Final = 4  # of a file that names machines, or holds several kinds
CANDIDATE = "candidate.yaml"  # a best.yaml of a config that was not confirmed to be faster
NO_GAIN = Interval(1.0, 1.0, 1.0)
RESULT = "result.json"  # what a search found, with the evidence, in its folder
# Values as written that ranks, and rates that follow the batch, are told by
BESIDES_THE_BATCH = (*PARTS, "threads")


def _rounded(interval: Interval) -> Interval:
    return Interval(*(round(value, 4) for value in vars(interval).values()))


Rounded = Annotated[Interval, AfterValidator(_rounded)]  # for a file that people read


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, from_attributes=True)


class MadeOn(_Section):
    """The machine of the search, as far as it decides how fast a config is.

    Attributes:
        memory_gib: RAM of the machine or the container, rounded down.
        gpus: Their names, with commas between them; "none" without one, null if not known.
    """

    cpu: str
    cores: int
    memory_gib: int
    gpus: str | None = "none"
    python: str
    torch: str

    @classmethod
    def on(cls, machine: Hardware) -> MadeOn:
        """Return what the file says of a machine."""
        return cls(
            cpu=machine.cpu_name,
            cores=machine.cpu_quota,
            memory_gib=machine.memory_bytes >> 30,
            gpus=machine.gpus_named,
            python=machine.versions.get("python", "none"),
            torch=machine.versions.get("torch", "none"),
        )

    @property
    def kind(self) -> str:
        """Such a machine in a few words."""
        cores = f"{self.cores} core{'s' * (self.cores != 1)}"
        return ", ".join([*([str(self.gpus)] if self.gpu_count else []), self.cpu, cores])

    @property
    def gpu_count(self) -> int:
        """How many GPUs the program could see."""
        return 0 if self.gpus in {None, "none"} else len(str(self.gpus).split(", "))

    def differences(self, machine: Hardware) -> list[str]:
        """Return what affects speed and differs on the machine of now, as clauses."""
        here, words = MadeOn.on(machine), {"cpu": "CPU", "gpus": "GPUs"}
        pairs = {
            words.get(name, name): (there, getattr(here, name))
            for name, there in self
            if name != "memory_gib"
        }
        return [
            f"{what}: {there} during the search, {now} now"
            for what, (there, now) in pairs.items()
            if there != now and None not in {there, now}
        ]


class SearchSection(_Section):
    """Which search wrote the file.

    Attributes:
        date: When it began.
        folder: Its folder from the program's working directory, where ``result.json`` lies.
        digest: The first digits of the SHA-256 of the program's source, to notice changes; empty if
            it is not known.
        objective: What the speedup is about: throughput, step-time, memory or energy.
    """

    date: str
    folder: str
    digest: str = ""
    objective: str = "throughput"


class LargerBatch(_Section):
    """A second config, which makes larger steps, learned as well, and has its own claim."""

    config: dict[str, KnobValue]
    speedup: Rounded
    lr_rule: LrRule = LrRule.AUTO


class GroupSection(_Section):
    """What machines of another kind take instead of the file's own config.

    Attributes:
        machine: Such a machine in a few words.
        config: What it changes of the program as it is written; empty where nothing is faster.
        speedup: Of ``config`` on such a machine; null where it is empty.
        machines: Names of those that the claim rests on.
    """

    machine: str
    config: dict[str, KnobValue] = {}
    speedup: Rounded | None = None
    machines: tuple[str, ...] = ()


class BestFile(_Section):
    """The content of a best.yaml.

    Only what differs between ``config`` and ``as_written`` is applied; users may edit ``config``.

    Attributes:
        program: The command line that was searched.
        confirmed: Whether fresh processes confirmed the speedup; false in a candidate.yaml.
        config: The settings that change, with their values.
        as_written: The program's own values of these, and of what else decides on ranks and rates.
        speedup: Over the program as written, with its 95 % interval.
        larger_batch: What ``autotune run --larger-batch`` takes instead of ``config``.
        machines: Names of those that the claim rests on, of a search that several shared.
        groups: What other kinds of machine take, by their fingerprints.
        made_on: The machine of the search.
        ranks: Number of ranks that the command line starts; null for one process.
        lr_rule: How learning rates follow the batch, where that changes.
        facts: What the settings need to know of the program in a fresh process.
    """

    version: Literal[3, 4] = 3
    program: str
    confirmed: bool = True
    config: dict[str, KnobValue]
    as_written: dict[str, KnobValue]
    speedup: Rounded
    larger_batch: LargerBatch | None = None
    machines: tuple[str, ...] = ()
    made_on: MadeOn
    search: SearchSection
    ranks: int | None = None
    lr_rule: LrRule = LrRule.AUTO
    facts: ProgramTraits
    groups: dict[str, GroupSection] = {}

    @field_validator("program")
    @classmethod
    def _can_be_split(cls, command: str) -> str:
        shlex.split(command)  # it says what is wrong, such as a quote that nothing closes
        return command

    @classmethod
    def of(cls, applied: AppliedConfig, program: Program, **about: Any) -> BestFile:
        """Return the file of a config, with the values and facts that its settings need alone.

        Args:
            about: The other attributes.
        """
        changes = applied.config.changes_from(applied.baseline)
        larger: LargerBatch | None = about.get("larger_batch")
        groups: Mapping[str, GroupSection] = about.get("groups", {})
        settings = {*changes, *chain(*_others(larger, groups))}
        needed = settings | {"batch_size", *applied.traits.program_knobs}
        is_shared = program.ranks is not None or bool(applied.traits.distributes_itself)
        is_scaled = is_shared or bool(settings & {*PARTS})
        if is_scaled:
            needed |= {*BESIDES_THE_BATCH}
        is_from_outside = any(
            type(registry()[one]) not in KNOBS for one in settings if one.isidentifier()
        )
        facts = applied.traits
        if not (is_shared or is_from_outside):
            facts = facts.needed_by(settings)
        # An autotune that knows the first version alone says so, not which keys it does not know
        return cls(
            version=SHARED_VERSION if groups or about.get("machines") else VERSION,
            program=str(program),
            config=changes,
            as_written={k: v for k, v in applied.baseline.items() if k in needed},
            ranks=program.ranks,
            lr_rule=applied.lr_rule if is_scaled else LrRule.AUTO,
            facts=facts,
            **about,
        )

    @property
    def applied(self) -> AppliedConfig:
        """The config with everything that a fresh process needs to apply it."""
        return AppliedConfig(
            config=Config({**self.as_written, **self.config}),
            baseline=Config(self.as_written),
            traits=self.facts,
            lr_rule=self.lr_rule,
        )

    @property
    def others(self) -> tuple[Mapping[str, KnobValue], ...]:
        """The configs that it holds besides its own."""
        return _others(self.larger_batch, self.groups)

    @property
    def lr_factor(self) -> float:
        """Factor on the learning rate of the program's first optimizer."""
        applied = self.applied
        return Learning(applied.config, applied.baseline, applied, has_batchnorm=False).lr_factor

    def with_larger_batch(self) -> BestFile:
        """Return the file whose config is the one with larger steps.

        Raises:
            UsageError: It has none.
        """
        if self.larger_batch is None:
            raise UsageError(
                "The file has no config with a larger batch. Leave out --larger-batch."
            )
        taken = {**dict(self.larger_batch), "larger_batch": None, "groups": {}}
        return self.model_copy(update=taken)

    def on(self, machine: Hardware | None = None) -> tuple[BestFile, str]:
        """Return the file as a machine takes it, and a sentence about that.

        Where none of several kinds is that of the machine, it takes the file's own config. The
        sentence is empty if the file holds one kind alone.

        Args:
            machine: Where to train; None for this one.
        """
        if not self.groups:
            return self, ""
        here = hardware.detect() if machine is None else machine
        taken, kind = self.of_group(name := self.group_on(here)), self.made_on.kind
        is_same = name == here.fingerprint or not (name or self.made_on.differences(here))
        if name:
            taken = taken.model_copy(update={"made_on": MadeOn.on(here)})
            kind = self.groups[name].machine
        is_alike = _parts(kind) == _parts(here.named)
        none, how = ("", "") if is_same else (", and this is none of them", "")
        if is_alike and not is_same:  # told by the machine's name, without driver and versions
            none, how = "", ", which this one looks like,"
        gain = factor(taken.speedup) if taken.config else "nothing is faster there"
        kinds = f"It holds settings for {1 + len(self.groups)} kinds of machine{none}."
        return taken, f"{kinds} Those for {shown(kind)}{how} are used ({gain})."

    def group_on(self, machine: Hardware) -> str:
        """Return the fingerprint of the group whose config a machine takes; empty for the own one.

        A search knows more of a machine than can be read without the program, such as which GPUs
        are used, so one that looks alike is taken where no fingerprint is the same.
        """
        if machine.fingerprint in self.groups:
            return machine.fingerprint
        here = _parts(machine.named)
        if _parts(self.made_on.kind) == here:
            return ""
        alike = (name for name, one in self.groups.items() if _parts(one.machine) == here)
        return next(alike, "")

    def of_group(self, name: str) -> BestFile:
        """Return the file as machines of a group take it; that of its own without such a group.

        Args:
            name: The group's fingerprint.
        """
        if (group := self.groups.get(name)) is None:
            return self.model_copy(update={"groups": {}})
        # What is as written here may be a change there, such as the number of threads
        written = {k: v for k, v in self.as_written.items() if group.config.get(k) != v}
        taken = {
            "config": group.config,
            "as_written": written,
            "speedup": group.speedup or NO_GAIN,
            "larger_batch": None,
            "machines": group.machines,
            "groups": {},
        }
        return self.model_copy(update=taken)

    def warnings(
        self, machine: Hardware, program: Program | None, path: Path | None = None
    ) -> list[str]:
        """Return what differs from where the file was made, one sentence each.

        Args:
            path: Where the file lies.
        """
        found = [
            f"{difference}. Another config may be faster here; search again."
            for difference in self.made_on.differences(machine)
        ]
        if not self.confirmed:
            found.insert(
                0, "The speedup is not confirmed: too few fresh processes have compared it."
            )
        if program is not None:
            near = [] if path is None else [path.parent / RESULT]
            records = [*near, Path(program.cwd, self.search.folder, RESULT)]
            found += filter(None, [self.searched.change(program, records)])
        return found

    @property
    def searched(self) -> SearchedProgram:
        """The program that the search was of."""
        return SearchedProgram(self.program, self.search.digest, self.search.date)

    @property
    def typed_variables(self) -> dict[str, str]:
        """The environment variables that the command line sets before what it runs."""
        words = shlex.split(self.program)
        before = takewhile(lambda word: word != "-m" and ".py" not in word, words)
        pairs = (word.partition("=") for word in before)
        return {name: value for name, sets, value in pairs if sets and name.isidentifier()}

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
            if (flag := self.facts.flags.get(knob)) is not None:
                own = value if knob in flag.spellings else registry()[knob].format_flag(value, flag)
                arguments[flag.name.removeprefix(KEYWORD)] = as_text(own)
        allowed = {name.removeprefix("$") for name in allow_env}
        refuse_unless_allowed(variables, allowed, str(path))
        said = {"sets environment variables": variables, "passes to the program": arguments}
        return [
            f"{path.name} {what}: {' '.join(f'{shown(n)}={shown(v)}' for n, v in values.items())}"
            for what, values in said.items()
            if values
        ]

    def text(self, name: str = "best.yaml") -> str:
        """Return the file's content."""
        data = self.model_dump(mode="json", exclude_defaults=True)
        if not self.facts.flags:
            data["facts"].pop("flags", None)
        if {*PARTS} & {*self.config, *chain(*self.others)}:
            data["facts"].setdefault("optimizers", [])  # known, and none: see _unreached()
        what = TRAIN if self.confirmed else TRY
        if self.applied.is_as_written:
            what = NOTHING
        # A line break in an argument would end the comment and spoil the YAML.
        header = HEADER.format(what=what, name=name, program=" ".join(self.program.split()))
        return header + "".join(_lines({"version": self.version, **data}))


def _others(
    larger: LargerBatch | None, groups: Mapping[str, GroupSection]
) -> tuple[Mapping[str, KnobValue], ...]:
    return tuple(one.config for one in (larger, *groups.values()) if one is not None)


def _parts(machine: str) -> set[str]:
    """Return what a machine is said to have, without how many GPUs of a kind these are."""
    return {re.sub(r"^\d+x ", "", part) for part in machine.split(", ")}


def _lines(data: Mapping[str, Any]) -> Iterator[str]:
    """Yield the file's entries in YAML: what people edit in a line each, the rest is compact."""
    for key, value in data.items():
        if key == "groups":
            yield "groups:\n"
            for name, group in value.items():
                line = yaml.safe_dump(
                    {name: group},
                    sort_keys=False, allow_unicode=True, width=96, default_flow_style=True,
                )  # fmt: skip
                yield indent(line[1:-2], "  ") + "\n"
            continue
        is_compact = key != "config" and isinstance(value, Mapping | list)
        style = None if is_compact else False
        yield yaml.safe_dump(
            {key: value}, sort_keys=False, allow_unicode=True, width=100, default_flow_style=style
        )


def read(path: Path, *, larger_batch: bool = False) -> BestFile:
    """Read a best.yaml, which users may have edited.

    Args:
        larger_batch: Whether its second config is wanted, the one with larger steps.

    Raises:
        FileFormatError: when it is unreadable, of another version, or wrong; it lists every fault
            with its line.
        UsageError: It has no second config.
    """
    file = yamlfile.read(path)
    version = file.data.get("version")
    if not {"version", "config"} & file.data.keys():  # one fault, not one for each key
        raise FileFormatError(
            f"{path} is not the result of a search: it has neither 'version' nor 'config'. Name "
            "the best.yaml of a search, or the search."
        )
    if isinstance(version, int) and version not in {VERSION, SHARED_VERSION}:
        mend = "An older autotune wrote it: search again."
        if version > SHARED_VERSION:
            mend = "Install a newer autotune: git pull and pip install . in your clone of it."
        raise FileFormatError(
            f"{file.where('version')}: this file has version {version}, but this autotune reads "
            f"versions {VERSION} and {SHARED_VERSION}. {mend}"
        )
    data = dict(file.data)
    faults = [*_parse_knobs(file, data, "config"), *_parse_knobs(file, data, "as_written")]
    if isinstance(larger := data.get("larger_batch"), dict):
        data["larger_batch"] = larger = dict(larger)
        faults += _parse_knobs(file, larger, "config", "larger_batch")
    if isinstance(groups := data.get("groups"), dict):
        data["groups"] = groups = dict(groups)
        for name, group in groups.items():
            if isinstance(group, dict):
                groups[name] = copied = dict(group)
                faults += _parse_knobs(file, copied, "config", "groups", str(name))
    faults += _unreached(file, data)
    try:
        # JSON mode makes tuples of lists and members of texts; dates and the like become text
        best = BestFile.model_validate_json(json.dumps(data, default=str))
    except ValidationError as error:
        faults += [_fault(file, dict(fault)) for fault in error.errors()]
    if faults:
        raise FileFormatError("\n".join(faults))
    return best.with_larger_batch() if larger_batch else best


def _parse_knobs(
    file: yamlfile.YamlFile, data: dict[str, Any], section: str, *above: str
) -> list[str]:
    """Replace the values of a section in *data* by what knobs parse them to; return the faults."""
    faults = []
    entries = data.get(section)
    if not isinstance(entries, dict):
        return []
    parsed: dict[str, KnobValue] = {}
    for name, raw in entries.items():
        try:
            parsed[str(name)] = parse_value(str(name), raw, file.where(*above, section, str(name)))
        except UsageError as error:
            faults.append(str(error))
    data[section] = parsed
    return faults


def _unreached(file: yamlfile.YamlFile, data: Mapping[str, Any]) -> list[str]:
    """Return which settings were added that need facts of the program that the file lacks."""
    config, written, facts = (data.get(key) for key in ("config", "as_written", "facts"))
    if not (isinstance(config, dict) and isinstance(written, dict) and isinstance(facts, dict)):
        return []
    reached = [*(facts.get("flags") or ()), *(facts.get("program_knobs") or ())]
    unreached = {*(() if facts.get("loader") else LOADER_OPTIONS)} - {*reached}
    # Other steps with rates that do not follow them would be another training
    unreached |= {*(() if "optimizers" in facts else PARTS)} - {*(facts.get("program_knobs") or ())}
    return [
        f"{file.where('config', name)}: The search did not change '{name}', so the file lacks what "
        f"it needs to know of the program for it. Search again with --set {name}={value}."
        for name, value in config.items()
        if name in FACTS_NEEDED and (name not in written or name in unreached)
    ]


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
