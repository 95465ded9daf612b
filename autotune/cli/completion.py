"""What a shell offers when the user presses Tab after one of autotune's options or commands.

Each function gets what was typed of the word and returns the words that it may become. Where it
returns none, the shell offers files. It runs on every Tab, so it imports neither torch nor optuna.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path


def beginning(incomplete: str, words: Iterable[str]) -> list[str]:
    """Return the words that begin as typed."""
    return [str(word) for word in words if word.startswith(incomplete)]


def searches(incomplete: str) -> list[str]:
    """Return the searches of this folder, the latest first."""
    from autotune.tuning.storage import search_dir

    return beginning(incomplete, (run.name for run in search_dir.every()))


def sides(incomplete: str) -> list[str]:
    """Return what may stand on a side of ``autotune compare``."""
    from autotune.program.revision import COMMIT, WRITTEN

    return [*beginning(incomplete, (WRITTEN, COMMIT)), *searches(incomplete), *_yaml(incomplete)]


def spaces(incomplete: str) -> list[str]:
    """Return the built-in search spaces, and YAML files."""
    from autotune.knobs.space.spacefile import shipped_names

    return [*beginning(incomplete, shipped_names()), *_yaml(incomplete)]


def knob_list(incomplete: str) -> list[str]:
    """Return what a list of knobs such as ``a,b`` may go on with."""
    from autotune.knobs import registry

    before, comma, last = incomplete.rpartition(",")
    named = set(before.split(","))
    return [f"{before}{comma}{k}" for k in beginning(last, registry()) if k not in named]


def setting(incomplete: str) -> list[str]:
    """Return what ``NAME=value`` may become: the settings, each with its equals sign."""
    from autotune.knobs import registry

    return beginning(incomplete, (f"{knob}=" for knob in registry()))


def exports(incomplete: str) -> list[str]:
    """Return the formats and trackers of ``autotune export --to``."""
    from autotune.exports import TRACKERS, formats

    return beginning(incomplete, (*formats(), *TRACKERS))


def executors(incomplete: str) -> list[str]:
    """Return what ``autotune search --executor`` takes."""
    from autotune.cli.executors import MEMBERS

    return beginning(incomplete, MEMBERS)


def _yaml(incomplete: str) -> Iterator[str]:
    """Yield the paths of YAML files that begin as typed."""
    folder, slash, name = incomplete.rpartition("/")
    for path in sorted(Path(f"{folder}{slash}" or ".").expanduser().glob("*.y*ml")):
        if path.name.startswith(name):
            yield f"{folder}{slash}{path.name}"
