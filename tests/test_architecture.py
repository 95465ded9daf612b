"""The laws of the house, kept by reading its imports."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import autotune
from tests import house

# Which rooms, or single files of them, each room may import
VALUES = {"machine", "program", "measurement", "files", "errors"}
ALLOWED: dict[str, set[str]] = {
    "errors": set(),
    "files": {"errors"},
    "measurement": {"errors"},
    "program": {"measurement", "files", "errors"},
    "machine": {"measurement", "files", "errors"},
    "knobs": VALUES,
    "results": {"knobs", *VALUES},
    "exports": {"results", "knobs", *VALUES},
    "report": {"exports", "results", "knobs", *VALUES},
    "rig": {"knobs", *VALUES},
    "inside": {
        "rig.wire",  # what the two processes say to each other
        "rig.local_ranks",  # what our launcher tells its ranks
        "results.bestfile",
        "machine.probes",
        "machine.process_tree",
        "machine.hardware",  # whether this is the machine that best.yaml was made on
        *("knobs", "program", "measurement", "files", "errors"),
    },
    "sharing": {"results", "knobs", *VALUES},
    "tuning": {"sharing", "rig", "results", "knobs", *VALUES},
    "api": {"exports", "report", "tuning", "rig", "results", "knobs", *VALUES},
    # the empty name is that of the version
    "cli": {
        "",
        "api",
        "exports",
        "report",
        "tuning",
        "sharing",
        "rig",
        "results",
        "knobs",
        *VALUES,
    },
    house.FACE: {"api", "cli", "results", "program", "inside"},
    **{name: {""} for name in house.CALLBACKS},  # autotune.apply
}
MAX_ENTRIES, MAX_FILES, MAX_CHAIN = 17, 20, 11
FLAT_FAMILIES = {"knobs", "inside/seams"}  # one file per member, however many there are
# What runs inside the program, and imports torch in its functions
TORCH_IN_FUNCTIONS = {
    "torch_memory",
    *(path.stem for path in (house.PACKAGE / "knobs" / "strategies").glob("*.py")),
}


def _users(package: str, *, anywhere: bool = True) -> set[str]:
    return {
        module
        for module in house.modules()
        for source, name in house.imported_by(module, anywhere=anywhere)
        if f"{source}.{name}.".startswith(f"{package}.")
    }


def test_the_parent_never_imports_torch_and_the_inside_is_imported_to_apply_alone() -> None:
    users = {one for one in _users("torch") | _users("torchvision") if not _is_inside(one)}
    assert {one.split(".")[-1] for one in users} <= TORCH_IN_FUNCTIONS
    assert all(map(_is_inside, _users("torch", anywhere=False)))
    assert [one for one in _users("autotune.inside") if not _is_inside(one)] == [""]


def _is_inside(module: str) -> bool:
    return house.room(module) == "inside"


def test_help_and_a_list_of_no_search_load_neither_torch_nor_optuna(tmp_path: Path) -> None:
    code = (
        "import sys\n"
        "from autotune.cli.app import main\n"
        "for command in (['--help'], ['search', '--help'], ['show', '--list']):\n"
        "    sys.argv = ['autotune', *command]\n"
        "    try:\n        main()\n"
        "    except SystemExit as end:\n        assert not end.code, end.code\n"
        "    heavy = {'torch', 'optuna', 'numpy', 'sqlalchemy'} & set(sys.modules)\n"
        "    assert not heavy, (command, heavy)\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=tmp_path)


def test_only_the_seams_change_attributes_of_pytorch() -> None:
    for module in house.modules():
        if {"seams", "hubs"} & set(module.split(".")):
            continue
        for node in ast.walk(house.tree_of(module)):
            match node:
                case ast.Assign(targets=[ast.Attribute() as target]):
                    assert not ast.unparse(target).startswith(("torch.", "nn.")), module
                case ast.Call(func=ast.Name("setattr")):
                    pytest.fail(f"{module}:{node.lineno} uses setattr")


def test_optuna_is_imported_by_few_modules_and_tools_of_users_within_functions() -> None:
    assert {
        one.split(".")[-1]
        for one in _users("optuna")
        if not one.startswith("sharing.")  # within functions, as the next lines say
    } == {"sampler", "study", "record_storage"}
    for tool in ("psycopg", "grpc"):
        assert all(one.startswith("sharing.") for one in _users(tool)), tool
        assert not _users(tool, anywhere=False), tool
    for tool in ("mlflow", "wandb", "tensorboard", "IPython"):
        assert all(one.startswith(("exports.", "inside.", "api")) for one in _users(tool)), tool
        assert not _users(tool, anywhere=False), tool


@pytest.mark.parametrize("family", ["knobs", "knobs.strategies", "machine.probes"])
def test_members_of_a_family_never_import_each_other(family: str) -> None:
    allowed = {"base", "strategies"} if family == "knobs" else {"base"}
    for module in house.modules():
        if module.rpartition(".")[0] == family and not module.endswith(".base"):
            own = {name for name in house.imports()[module] if name.startswith(f"{family}.")}
            assert {name[len(family) + 1 :].split(".")[0] for name in own} <= allowed, module


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
    assert len(house.code_lines(house.text_of("tuning.workflow"))) <= 45, (
        "docstrings and comments left out"
    )


def test_every_module_opens_with_what_it_is_for() -> None:
    for module in house.modules():
        docstring = ast.get_docstring(house.tree_of(module))
        assert docstring, module
        assert docstring.splitlines()[0].endswith((".", ":")), module


def test_the_public_names_are_these() -> None:
    assert autotune.__all__ == [
        "Config",
        "SearchResult",
        "apply",
        "load",
        "log",
        "resume",
        "search",
    ]
    assert all(hasattr(autotune, name) for name in autotune.__all__)
