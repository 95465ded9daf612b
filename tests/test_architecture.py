"""The laws of the house, kept by reading its imports."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import autotune

PACKAGE = Path(autotune.__file__).parent
FAMILIES = ("knobs", "probes", "strategies")
VALUES = (
    "config",
    "domain",
    "flags",
    "outcome",
    "profile",
    "measurement",
    "lr",
    "setting",
    "record",
    "interference",
    "mode",
)
# What a record may hold besides values
LEAVES = ("errors", "fence", "hardware", "program", "space")
# What runs inside the program, and imports torch in its functions
TORCH_IN_FUNCTIONS = {
    "torch_memory",
    *(path.stem for path in (PACKAGE / "strategies").glob("*.py")),
}


def _modules() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def _name(path: Path) -> str:
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _imports(path: Path, *, anywhere: bool) -> Iterator[str]:
    """Names of imported modules: all of them, or those at import time alone."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    todo: list[ast.AST] = [tree]
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
        "from autotune.cli import main\n"
        f"sys.argv = ['autotune', *{command!r}]\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code, end.code\n"
        "heavy = {'torch', 'optuna', 'numpy', 'sqlalchemy'} & set(sys.modules)\n"
        "assert not heavy, heavy\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_only_the_seams_change_attributes_of_pytorch() -> None:
    for path in _modules():
        if "seams" in path.parts:
            continue
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            match node:
                case ast.Assign(targets=[ast.Attribute() as target]):
                    assert not ast.unparse(target).startswith(("torch.", "nn.")), path
                case ast.Call(func=ast.Name("setattr")):
                    pytest.fail(f"{path}:{node.lineno} uses setattr")


def test_only_two_files_import_optuna() -> None:
    users = {p.stem for p in _modules() if _imports_package(p, "optuna")}
    assert users == {"sampler", "study"}


@pytest.mark.parametrize("family", FAMILIES)
def test_members_of_a_family_never_import_each_other(family: str) -> None:
    for path in (PACKAGE / family).glob("*.py"):
        if path.stem in {"__init__", "base"}:
            continue
        own = [n for n in _imports(path, anywhere=True) if n.startswith(f"autotune.{family}.")]
        assert {name.split(".")[2] for name in own} <= {"base"}, path


def test_values_import_nothing_of_ours_but_values() -> None:
    allowed = {f"autotune.{name}" for name in (*VALUES, *LEAVES)}
    for name in VALUES:
        modules = {
            ".".join(imported.split(".")[:2])
            for imported in _imports(PACKAGE / f"{name}.py", anywhere=True)
            if imported.startswith("autotune.")
        }
        assert modules <= allowed, name


def test_the_search_reads_on_one_screen() -> None:
    assert len((PACKAGE / "workflow.py").read_text(encoding="utf-8").splitlines()) <= 45


def test_every_module_opens_with_what_it_is_for() -> None:
    for path in _modules():
        docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
        assert docstring, path
        assert docstring.splitlines()[0].endswith((".", ":")), path


def test_the_public_names_are_these() -> None:
    assert autotune.__all__ == ["Config", "SearchResult", "apply", "search"]
    assert all(hasattr(autotune, name) for name in autotune.__all__)
