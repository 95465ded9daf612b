"""Reading of search spaces from YAML files: shipped ones by name, the user's by path.

All faults of a file are reported together, each with its line.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from autotune.errors import FileFormatError, UsageError, did_you_mean
from autotune.knobs import parse_value
from autotune.knobs.space import yamlfile
from autotune.knobs.space.space import SearchSpace, check_names
from autotune.knobs.space.tuning_variables import unlisted
from autotune.program.config import KnobValue

VERSION = 1
KEYS = ("version", "knobs", "fixed")
AUTO = "auto"


def shipped_dir() -> Path:
    """Return the folder of the shipped spaces; in a clone it is next to the package."""
    inside = Path(__file__).parents[2] / "search_spaces"
    return inside if inside.is_dir() else Path(__file__).parents[3] / "search_spaces"


def shipped_names() -> list[str]:
    """Return the sorted names that ``--space`` accepts."""
    return sorted(p.stem for p in shipped_dir().glob("*.yaml"))


def load(name_or_path: str) -> SearchSpace:
    """Return the search space with a shipped name, else from a YAML file.

    Raises:
        FileFormatError: The file cannot be read or has faults, each of which is listed.
    """
    if name_or_path in shipped_names():
        return _parse(yamlfile.read(shipped_dir() / f"{name_or_path}.yaml"))
    path = Path(name_or_path)
    if path.suffix not in {".yaml", ".yml"} and not path.is_file():
        names = shipped_names()
        raise UsageError(
            f"There is no search space '{name_or_path}'.{did_you_mean(name_or_path, names)} "
            f"Shipped are: {', '.join(names)}; or name a YAML file."
        )
    return _parse(yamlfile.read(path))


def _parse(file: yamlfile.YamlFile) -> SearchSpace:
    faults = list(_faults(file))
    knobs: dict[str, tuple[KnobValue, ...] | None] = {}
    fixed: dict[str, KnobValue] = {}
    for section in ("knobs", "fixed"):
        entries = file.data.get(section) or {}
        if not isinstance(entries, Mapping):
            faults.append(
                f"{file.where(section)}: '{section}' must consist of 'setting: value' lines."
            )
            continue
        for name, raw in entries.items():
            where = file.where(section, str(name))
            try:
                _check_name(str(name), where)
                if section == "knobs":
                    knobs[str(name)] = _values(str(name), raw, where)
                else:
                    fixed[str(name)] = parse_value(str(name), raw, where)
            except UsageError as error:
                faults.append(str(error))
    if faults:
        raise FileFormatError("\n".join(faults))
    # A knob in both sections is held at its fixed value.
    return SearchSpace(file.path.stem, {k: v for k, v in knobs.items() if k not in fixed}, fixed)


def _faults(file: yamlfile.YamlFile) -> Iterator[str]:
    for key in file.data:
        if key not in KEYS:
            hint = did_you_mean(str(key), KEYS)
            yield f"{file.where(str(key))}: Unknown key '{key}'.{hint} Keys are: {', '.join(KEYS)}."
    version = file.data.get("version")
    if version != VERSION:
        yield (
            f"{file.where('version')}: version is {version!r}, but this autotune reads {VERSION}. "
            f"Write 'version: {VERSION}', or upgrade autotune for a later one."
        )
    if not file.data.get("knobs") and not file.data.get("fixed"):
        yield f"{file.path}: 'knobs' is missing or empty. Write for example 'workers: auto'."


def _values(name: str, raw: object, where: str) -> tuple[KnobValue, ...] | None:
    if raw == AUTO:
        return None
    if isinstance(raw, list) and raw:
        return tuple(dict.fromkeys(parse_value(name, item, where) for item in raw))
    raise UsageError(f"{where}: setting '{name}' takes 'auto' or a list of values, not {raw!r}.")


def _check_name(name: str, where: str) -> None:
    check_names([name], where)
    variable = name.removeprefix("$")
    # A shared file must not load code into the user's program, as LD_PRELOAD would.
    if variable != name and unlisted([variable]):
        raise UsageError(
            f"{where}: a file may not set '{name}', which is not known to tune: many variables "
            f"load code or name files. Name it yourself: --set env:{variable}=VALUE,VALUE."
        )
