"""What is published: ``make dist`` builds the wheel and the sdist into dist/, and checks them.

They are installed into an empty environment from wheels alone, so without a compiler. Of torch,
which takes gigabytes, only pip's plan is looked at; without it, autotune refuses in one line.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import venv
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from autotune import __version__

ROOT = Path(__file__).parents[1]
CHANGES = ROOT / "docs" / "changelog.md"
# Beside the package, its spaces and its metadata
BESIDE = {"pyproject.toml", "README.md", "LICENSE", "PKG-INFO", ".gitignore", "docs/changelog.md"}


class Failed(Exception):
    """What is wrong with the distributions, or the end of what a command printed."""


def faults(wheel: Path, sdist: Path) -> Iterator[str]:
    """Yield what is missing in a wheel and in an sdist, and what has no place there."""
    packed = set(zipfile.ZipFile(wheel).namelist())
    with tarfile.open(sdist) as archive:
        members = {one.name.partition("/")[2] for one in archive if one.isfile()}
    ours = {one for one in (ROOT / "autotune").rglob("*") if one.is_file()}
    files = {str(one.relative_to(ROOT)) for one in ours if "__pycache__" not in one.parts}
    spaces = {f"search_spaces/{one.name}" for one in (ROOT / "search_spaces").iterdir()}
    about = {one for one in packed if one.startswith(f"autotune_torch-{__version__}.dist-info/")}
    for name, there, wanted, beside in (
        (wheel.name, packed, files | {f"autotune/{one}" for one in spaces}, about),
        (sdist.name, members, files | spaces, BESIDE),
    ):
        for one in sorted(wanted - there):
            yield f"{name} lacks {one}"
        for one in sorted(there - wanted - beside):
            yield f"{name} holds {one}"
    if not any(one.endswith("/licenses/LICENSE") for one in about):
        yield f"{wheel.name} lacks the licence"


def faults_of_tag(tag: str, changes: str) -> Iterator[str]:
    """Yield why the tag of a release, such as ``v0.1.0``, is not one of this version."""
    if tag != f"v{__version__}":
        yield f"the tag is {tag}, and the version in autotune/__init__.py is {__version__}"
    if not re.search(rf"^## {re.escape(__version__)} ", changes, re.MULTILINE):
        yield f"docs/changelog.md has no heading '## {__version__} (DATE)'"


def faults_of_version() -> Iterator[str]:
    """Yield it if pyproject.toml names another version than the package."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    if project["version"] != __version__:
        yield f"pyproject.toml has version {project['version']}, the package {__version__}"


def install(wheel: Path) -> None:
    """Install a wheel into an empty environment, from wheels alone.

    Raises:
        Failed: pip finds no wheel of a dependency, or the command does not do what it should.
    """
    with tempfile.TemporaryDirectory(prefix="dist-") as folder:
        venv.create(folder, with_pip=True)
        programs = Path(folder) / "bin"
        pip = [str(programs / "python"), "-m", "pip", "install", "--only-binary", ":all:"]
        plan = said([*pip, "--dry-run", wheel])
        if not re.search(r"Would install .*\btorch-\d", plan):
            raise Failed(f"pip would not install torch where it is missing:\n{plan}")
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        said([*pip, "--quiet", "--no-deps", wheel])
        said([*pip, "--quiet", *(one for one in project["dependencies"] if one != "torch")])
        if said([programs / "autotune", "--version"]) != f"autotune {__version__}\n":
            raise Failed("autotune --version names another version")
        refused = said([programs / "autotune", "doctor"], status=2)
        if len(refused.splitlines()) != 1 or "this environment has none" not in refused:
            raise Failed(f"without torch, autotune prints:\n{refused}")


def said(words: Sequence[str | Path], status: int = 0) -> str:
    """Run a command and return what it printed.

    Raises:
        Failed: It ended with another status.
    """
    done = subprocess.run(
        words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"},
    )  # fmt: skip
    if done.returncode != status:
        end = "\n".join(done.stdout.splitlines()[-20:])
        raise Failed(f"{' '.join(map(str, words))} ended with {done.returncode}:\n{end}")
    return done.stdout


def build(folder: Path, tag: str) -> str:
    """Build what is published into a folder and check it; return a sentence on what is there.

    Raises:
        Failed: Something is wrong with it.
    """
    said([sys.executable, "-m", "build", "--outdir", folder, ROOT])
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    said([sys.executable, "-m", "twine", "check", "--strict", wheel, sdist])
    found = [*faults(wheel, sdist), *faults_of_version()]
    if tag:
        found += faults_of_tag(tag, CHANGES.read_text(encoding="utf-8"))
    if found:
        raise Failed("\n".join(found))
    install(wheel)
    return f"dist/ holds {wheel.name} and {sdist.name}; they are complete and can be installed."


def main(tag: str = "") -> int:
    """Build and check dist/; the status is 1 if something is wrong with it."""
    folder = ROOT / "dist"
    shutil.rmtree(folder, ignore_errors=True)
    try:
        print(build(folder, tag))
    except Failed as error:
        print(error)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:2]))
