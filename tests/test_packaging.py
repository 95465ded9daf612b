import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

from autotune import __version__
from autotune.cli.exit_status import ExitStatus
from tests import dist, house

ROOT = Path(__file__).parent.parent
# What several machines share a search by, as packages and as modules
ENGINES = {"psycopg", "grpcio", "protobuf", "ray", "kubernetes"}
ENGINE_MODULES = ("psycopg", "grpc", "google.protobuf", "ray", "kubernetes")


@pytest.mark.slow
def test_the_built_wheel_gives_a_working_command_with_the_shipped_spaces(tmp_path: Path) -> None:
    """The wheel is installed alone; what it depends on comes from the environment of the tests."""
    subprocess.run(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", tmp_path, ROOT],
        check=True, capture_output=True,
    )  # fmt: skip
    (wheel,) = tmp_path.glob("autotune_torch-*.whl")
    (sdist,) = tmp_path.glob("autotune_torch-*.tar.gz")
    assert not list(dist.faults(wheel, sdist))
    shipped = ["cpu", "default", "devices", "full", "memory", "quick"]
    home = tmp_path / "env"
    venv.create(home, with_pip=False)
    site = next(home.glob("lib/python*/site-packages"))
    with zipfile.ZipFile(wheel) as packed:
        packed.extractall(site)
    (site / "rest.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
    code = (
        "import autotune, autotune.knobs.space.spacefile as s; "
        "print(autotune.__file__, s.load('default').name, s.shipped_names())"
    )
    said = subprocess.run(
        [home / "bin" / "python", "-c", code],
        check=True, capture_output=True, text=True, cwd=tmp_path,
    ).stdout  # fmt: skip
    assert str(site) in said
    assert f"default {shipped}" in said


def test_a_release_needs_a_tag_of_its_version_and_its_changes() -> None:
    """`make dist TAG=v0.1.0` checks that, where the workflow of releases types it."""
    assert not list(dist.faults_of_version())
    changes = f"# Changelog\n\n## {__version__} (2026-12-01)\n"
    assert not list(dist.faults_of_tag(f"v{__version__}", changes))
    assert len(list(dist.faults_of_tag("v99.0", "# Changelog\n"))) == 2


def test_no_requirement_makes_pip_replace_the_torch_that_is_there() -> None:
    """Without a version it stays; a torchvision asks for one torch, and pip takes the newest."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert "torch" in project["dependencies"]
    extras = project["optional-dependencies"]
    named = {re.split(r"[^\w-]", one)[0] for some in extras.values() for one in some}
    assert "wandb" in named
    assert not named & {"torch", "torchvision", "torchaudio"}


@pytest.mark.parametrize("stays", [True, False])
def test_a_distribution_that_replaced_files_of_the_package_is_told(
    tmp_path: Path,
    stays: bool,
) -> None:
    """As `autotune` of PyPI does, which has the same import; pip removes them with it."""
    here = tmp_path / "autotune"
    shutil.copytree(ROOT / "autotune", here, ignore=shutil.ignore_patterns("__pycache__"))
    (here / "__init__.py").unlink()
    if stays:
        (here / "__init__.py").write_text("def main(): ...")
        about = tmp_path / "stranger-0.1.dist-info"
        about.mkdir()
        (about / "METADATA").write_text("Metadata-Version: 2.1\nName: stranger\nVersion: 0.1\n")
        (about / "top_level.txt").write_text("autotune\n")
    paths = os.pathsep.join([str(tmp_path), sysconfig.get_paths()["purelib"]])
    done = subprocess.run(
        [sys.executable, "-S", "-m", "autotune", "--version"],  # no .pth, which adds the real one
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": paths},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == ExitStatus.REFUSED, done.stderr
    said = "the same name, autotune: stranger. One" if stays else "Files of autotune are missing"
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_the_core_package_needs_no_engine_of_several_machines(tmp_path: Path) -> None:
    """All modules are imported, and one machine is searched, where none of them is installed."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    required = {re.split(r"[^\w-]", one)[0] for one in project["dependencies"]}
    assert "optuna" in required
    assert not required & ENGINES
    modules = [
        f"autotune.{one}".rstrip(".")
        for one in house.modules()
        if house.room(one) not in {"inside", *house.CALLBACKS} and one != "__main__"
    ]
    code = (
        "import importlib, pathlib, sys\n"
        f"sys.modules.update(dict.fromkeys({ENGINE_MODULES}))\n"
        f"for name in {modules}:\n    importlib.import_module(name)\n"
        "from tests.scripted import Script, begin\n"
        "script = Script({'workers': {1: 1.5}})\n"
        f"search = begin(pathlib.Path({str(tmp_path)!r}), script, {{'workers': (0, 1)}})\n"
        "print(search.go_on(180.0).finding)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout == "faster\n", done.stderr
