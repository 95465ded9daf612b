"""Writes what the pages of docs/reference/ list, and llms.txt: ``python -m tests.docs.reference``.

They are committed, so that they can be read without building the site. ``test_site.py`` compares
them with what this makes of commands, settings, ``SearchRequest``, the instructions for agents and
the other pages.
"""

import re
from collections.abc import Callable, Iterable, Iterator
from itertools import dropwhile
from pathlib import Path
from typing import Any

import typer
import yaml

from autotune.cli.app import app
from autotune.cli.exit_status import ExitStatus
from autotune.knobs import Knob, registry
from autotune.tuning.search_request import SearchRequest, described
from tests.docs.pages import ROOT

FOLDER = ROOT / "docs" / "reference"
SETTINGS = "| setting | changes | may change | what it sets |\n|---|---|---|---|\n"
ARGUMENTS = "| argument | meaning |\n|---|---|\n"
KEYS = "## Keys\n"
NEXT = "\n\n## "  # a section of a page begins
SKILL = ROOT / "autotune" / "cli" / "SKILL.md"
FOR_AGENTS = "## For agents\n"
OPTIONAL = {"Contribute": "Optional"}  # sections that an agent may leave out
PRINTED_BY = {"comparison": "compare --json", "doctor": "doctor --json", "result": "search --json"}
ENOUGH = 70  # characters that say what a page is about
STATUSES = "| status | meaning |\n|---|---|\n"
OPTIONS = "| option | meaning |\n|---|---|\n"
COMMANDS = """\
# Commands

Seven commands; `autotune COMMAND --help` prints the same as this page.

```console
autotune --help
```

autotune's own options come before the program. `PROGRAM` is what you want to train: `train.py`, or
[your usual command line](../use/your-command-line.md).
"""
ENDED = """\
## Exit statuses

`autotune run` becomes the training, so its status is the training's. All other commands end with:

"""


def commands(_page: str) -> str:
    """Return the page about the commands and how they end."""
    group: Any = typer.main.get_command(app)
    visible = {name: one for name, one in group.commands.items() if not one.hidden}
    statuses = (f"| {int(one)} | {_cell(one.meaning)} |" for one in ExitStatus)
    return "\n".join(
        [COMMANDS, *(_section(name, one) for name, one in visible.items()), ENDED]
    ) + _table(STATUSES, statuses)


def settings(page: str) -> str:
    """Return the page about the settings with its two tables as the settings are."""
    known = registry().items()
    shown = [_setting(name, one) for name, one in known if not one.is_hidden]
    hidden = [_setting(name, one) for name, one in known if one.is_hidden]
    before, first, second = _around(page, SETTINGS, 2)
    return f"{before}{_table(SETTINGS, shown)}{first}{_table(SETTINGS, hidden)}{second}"


def api(page: str) -> str:
    """Return the page about Python with the arguments of ``search()`` as they are."""
    rows = (f"| `{name}` | {_cell(one.help)} |" for name, one in described(SearchRequest).items())
    before, after = _around(page, ARGUMENTS, 1)
    return f"{before}{_table(ARGUMENTS, rows)}{after}"


def keys(page: str) -> str:
    """Return the page about ``result.json`` with the keys that agents are told."""
    before, mark, _ = page.partition(KEYS)
    assert mark
    _, _, told = SKILL.read_text(encoding="utf-8").partition("## Keys of `--json`\n")
    assert told
    return f"{before}{mark}{told.partition(NEXT)[0]}\n"


def llms(page: str) -> str:
    """Return llms.txt with the links to the skill, the schemas and the pages of the guide.

    It is Markdown in the format of llmstxt.org: a title, a summary, what to know, and lists of
    links; those below "Optional" are left out by a reader with little room.
    """
    before, mark, _ = page.partition(FOR_AGENTS)
    assert mark
    text = f"{before}{mark}\n- [Skill]({SKILL.relative_to(ROOT)}): What `autotune skill` prints.\n"
    for schema in sorted((ROOT / "autotune" / "results" / "schema").iterdir()):
        said = f"JSON Schema of what `autotune {PRINTED_BY[schema.stem.partition('-')[0]]}` prints."
        text += f"- [{schema.name}]({schema.relative_to(ROOT)}): {said}\n"
    _, *parts = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))["nav"]
    for part in parts:
        sections = part if isinstance(part, dict) else {"": [part]}
        for section, names in sections.items():
            text += f"\n## {OPTIONAL.get(section, section)}\n\n" if section else ""
            text += "".join(map(_answer, names))
    return text


PAGES: dict[Path, Callable[[str], str]] = {
    FOLDER / "commands.md": commands,
    FOLDER / "settings.md": settings,
    FOLDER / "api.md": api,
    FOLDER / "json.md": keys,
    ROOT / "llms.txt": llms,
}


def _answer(name: str) -> str:
    """Return a link to a page of the guide with its first sentences, which are its answer."""
    title, answer, *_ = (ROOT / "docs" / name).read_text(encoding="utf-8").split("\n\n")
    said, *more = re.split(r"(?<=\.)\s", " ".join(answer.split()))
    while more and len(said) < ENOUGH:
        said += f" {more.pop(0)}"
    return f"- [{title.removeprefix('# ')}](docs/{name}): {said}\n"


def _table(head: str, rows: Iterable[str]) -> str:
    return head + "".join(f"{row}\n" for row in rows)


def _around(page: str, head: str, tables: int) -> list[str]:
    """Return what stands before, between and after the tables with this head."""
    before, *rest = page.split(head)
    assert len(rest) == tables, head
    lines = (part.splitlines(keepends=True) for part in rest)
    return [before, *("".join(dropwhile(_is_row, part)) for part in lines)]


def _is_row(line: str) -> bool:
    return line.startswith("|")


def _setting(name: str, knob: Knob) -> str:
    return f"| `{name}` | {knob.scope} | {knob.changes} | {_cell(knob.summary)} |"


def _section(name: str, command: Any) -> str:
    head = f"## autotune {name}\n\n{command.help or ''}\n\n"
    return head + _table(OPTIONS, _rows(command))


def _rows(command: Any) -> Iterator[str]:
    for parameter in sorted(command.params, key=_is_hidden):
        is_argument = parameter.param_type_name == "argument"
        if parameter.name == "help" or not parameter.help:
            continue
        words = (parameter.metavar or parameter.name.upper(),) if is_argument else parameter.opts
        typed = ", ".join(f"`{word}`" for word in words)
        rare = " Rarely typed, so `--help` leaves it out." if _is_hidden(parameter) else ""
        default = "" if is_argument else _default(parameter)
        yield f"| {typed} | {_cell(parameter.help)}{default}{rare} |"


def _is_hidden(parameter: Any) -> bool:
    return bool(getattr(parameter, "hidden", False))


def _default(parameter: Any) -> str:
    """Return what is taken where the option is not typed; empty where that goes without saying."""
    value = parameter.default
    if (
        value in {None, False, "", ()}
        or callable(value)
        or not getattr(parameter, "show_default", True)
    ):
        return ""
    return f" Default: `{value}`."


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


if __name__ == "__main__":
    for path, make in PAGES.items():
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        path.write_text(make(text), encoding="utf-8")
