"""The laws of the house, kept by reading its imports."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import autotune
from tests import house

PACKAGE = Path(autotune.__file__).parent
FAMILIES = (
    "knobs",
    "knobs/strategies",
    "machine/probes",
)
# Which rooms, or single files of them, each room may import: HOUSE.md's laws as one table
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "measurement": {"errors"},
    "program": {"measurement", "errors"},
    "machine": {"measurement", "errors"},
    "knobs": {"machine", "program", "measurement", "errors"},
    "results": {"knobs", "machine", "program", "measurement", "errors"},
    "report": {"results", "knobs", "machine", "program", "measurement", "errors"},
    "rig": {"knobs", "machine", "program", "measurement", "errors"},
    "inside": {
        "rig.wire",  # what the two processes say to each other
        "rig.link",
        "rig.local_ranks",  # what our launcher tells its ranks
        "results.bestfile",
        "machine.probes",
        "machine.process_tree",
        "machine.hardware",  # whether this is the machine that best.yaml was made on
        "knobs",
        "program",
        "measurement",
        "errors",
    },
    "tuning": {"rig", "results", "knobs", "machine", "program", "measurement", "errors"},
    "exports": {"report", "results", "knobs", "machine", "program", "measurement", "errors"},
    "api": {
        *("exports", "report", "tuning", "rig", "results", "knobs", "machine", "program"),
        *("measurement", "errors"),
    },
    "cli": {
        "",  # the version
        *(
            "api",
            "exports",
            "report",
            "tuning",
            "rig",
            "results",
            "knobs",
            "machine",
            "program",
            "measurement",
            "errors",
        ),
    },
    house.FACE: {"api", "cli", "results", "program", "inside"},
}
MAX_ENTRIES, MAX_FILES, MAX_CHAIN = 15, 20, 11
FLAT_FAMILIES = {"knobs", "inside/seams"}  # one file per member, however many there are
# What runs inside the program, and imports torch in its functions
TORCH_IN_FUNCTIONS = {
    "torch_memory",
    *(path.stem for path in (PACKAGE / "knobs" / "strategies").glob("*.py")),
}


def _modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def _name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def _imports(path: Path, *, anywhere: bool) -> tuple[str, ...]:
    """Names of imported modules: all of them, or those at import time alone."""
    return tuple(_imported(path, anywhere=anywhere))


def _imported(path: Path, *, anywhere: bool) -> Iterator[str]:
    todo: list[ast.AST] = [_tree(path)]
    while todo:
        node = todo.pop()
        match node:
            case ast.Import():
                yield from (alias.name for alias in node.names)
            case ast.ImportFrom():
                assert node.module is not None, f"{path}: imports are absolute"
                yield node.module
                yield from (f"{node.module}.{alias.name}" for alias in node.names)
            case ast.If() if "TYPE_CHECKING" in ast.dump(node.test):
                todo.extend(node.orelse)
            case ast.FunctionDef() | ast.AsyncFunctionDef() if not anywhere:
                pass
            case _:
                todo.extend(ast.iter_child_nodes(node))


def _imports_package(path: Path, package: str, *, anywhere: bool = True) -> bool:
    names = _imports(path, anywhere=anywhere)
    return any(name == package or name.startswith(f"{package}.") for name in names)


def test_the_parent_never_imports_torch() -> None:
    outside = [p for p in _modules() if "inside" not in p.relative_to(PACKAGE).parts]
    assert len(outside) > 40
    packages = ("torch", "torchvision")
    users = {p.stem for p in outside if any(_imports_package(p, name) for name in packages)}
    assert users <= TORCH_IN_FUNCTIONS
    eager = [p.stem for p in outside if _imports_package(p, "torch", anywhere=False)]
    assert not eager


def test_no_module_of_the_parent_imports_the_inside_except_to_apply_or_for_types() -> None:
    users = {
        _name(p)
        for p in _modules()
        if "inside" not in p.relative_to(PACKAGE).parts and _imports_package(p, "autotune.inside")
    }
    assert users == {"autotune"}  # autotune.apply() runs in the user's own process


@pytest.mark.parametrize("command", [["--help"], ["search", "--help"], ["knobs"]])
def test_help_and_lists_load_neither_torch_nor_optuna(command: list[str]) -> None:
    code = (
        "import sys\n"
        "from autotune.cli.app import main\n"
        f"sys.argv = ['autotune', *{command!r}]\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        "heavy = {'torch', 'optuna', 'numpy', 'sqlalchemy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_only_the_seams_change_attributes_of_pytorch() -> None:
    for path in _modules():
        if {"seams", "hubs"} & set(path.parts):
            continue
        for node in ast.walk(_tree(path)):
            match node:
                case ast.Assign(targets=[ast.Attribute() as target]):
                    assert not ast.unparse(target).startswith(("torch.", "nn.")), path
                case ast.Call(func=ast.Name("setattr")):
                    pytest.fail(f"{path}:{node.lineno} uses setattr")


def test_a_place_with_a_hub_is_patched_by_its_hub_alone() -> None:
    """What acts there listens to the hub, so that the order can be read in one place."""
    places = {
        ("torch.autograd", "'backward'"): "hubs/backward.py",
        ("torch.Tensor", "'backward'"): "hubs/backward.py",
        ("torch", "'save'"): "hubs/saving.py",
        ("torch", "'load'"): "hubs/saving.py",
        ("cls", "'step'"): "hubs/step.py",
        ("Optimizer", "'step'"): "hubs/step.py",
        ("DataLoader", "'__init__'"): "hubs/iterate.py",
        ("DataLoader", "'__iter__'"): "hubs/iterate.py",
        ("DataLoader", "'_get_iterator'"): "hubs/iterate.py",
        ("DataLoader", "'__len__'"): "hubs/iterate.py",
    }
    for path in _modules():
        for node in ast.walk(_tree(path)):
            match node:
                case ast.Call(func=ast.Attribute(attr="replace"), args=[owner, name, _]):
                    place = places.get((ast.unparse(owner), ast.unparse(name)))
                    is_its = place is None or path.as_posix().endswith(place)
                    assert is_its or "scheduler" in path.name, f"{path}:{node.lineno}"


def test_tools_of_users_are_imported_within_functions_of_the_exports() -> None:
    rooms = "autotune.exports.", "autotune.inside.", "autotune.api"
    for tool in ("mlflow", "wandb", "tensorboard", "IPython"):
        users = {_name(p) for p in _modules() if _imports_package(p, tool)}
        assert all(name.startswith(rooms) for name in users), tool
        eager = [_name(p) for p in _modules() if _imports_package(p, tool, anywhere=False)]
        assert not eager, tool


def test_only_two_files_import_optuna() -> None:
    users = {p.stem for p in _modules() if _imports_package(p, "optuna")}
    assert users == {"sampler", "study"}


@pytest.mark.parametrize("family", FAMILIES)
def test_members_of_a_family_never_import_each_other(family: str) -> None:
    for path in (PACKAGE / family).glob("*.py"):
        if path.stem in {"__init__", "base"}:
            continue
        folder = f"autotune.{family.replace('/', '.')}."
        own = [n for n in _imports(path, anywhere=True) if n.startswith(folder)]
        kin = {name.removeprefix(folder).split(".")[0] for name in own}
        allowed = {"base", "strategies"} if family == "knobs" else {"base"}
        assert kin <= allowed, path


def test_each_room_imports_only_what_the_table_allows() -> None:
    broken = [
        f"{name} imports {target}"
        for name, targets in house.imports().items()
        for target in targets
        if house.room(name) != house.room(target)
        and not any(
            target == allowed or (allowed and target.startswith(f"{allowed}."))
            for allowed in ALLOWED[house.room(name)]
        )
    ]
    assert not broken


def test_no_imports_go_in_a_circle() -> None:
    assert not house.circle(house.imports())


def test_the_house_has_few_rooms_and_few_floors_and_no_folder_is_full() -> None:
    assert len(house.root_entries()) <= MAX_ENTRIES, house.root_entries()
    floors = house.chain(house.rooms())
    assert len(floors) <= MAX_CHAIN, floors
    full = {k: n for k, n in house.files_per_folder().items() if n > MAX_FILES}
    assert full.keys() <= FLAT_FAMILIES, full


def test_the_search_reads_on_one_screen() -> None:
    text = (PACKAGE / "tuning" / "workflow.py").read_text(encoding="utf-8")
    assert len(house.code_lines(text)) <= 45, "docstrings and comments left out"


def test_every_module_opens_with_what_it_is_for() -> None:
    for path in _modules():
        docstring = ast.get_docstring(_tree(path))
        assert docstring, path
        assert docstring.splitlines()[0].endswith((".", ":")), path


def test_the_public_names_are_these() -> None:
    assert autotune.__all__ == [
        "Config",
        "EffectsSampler",
        "SearchResult",
        "apply",
        "load",
        "log",
        "search",
    ]
    assert all(hasattr(autotune, name) for name in autotune.__all__)
