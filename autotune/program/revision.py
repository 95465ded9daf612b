"""A program as a git revision has it, next to the files of today that git does not track.

What git tracks comes from the revision, in a worktree within a temporary folder. What git does not
track is the same in each revision: data, outputs, environments. The worktree has links to it, and
the program runs there in the same place of the tree as the user would start it in.

Covered: ``python -m``, console scripts and packages installed with ``pip install -e``; changes that
were not committed stay where they are. The user's checkout, index and stash are not touched; a
worktree that a killed process left is removed the next time.

Not covered: submodules, which are those of today; arguments and settings that name a file of the
repository by its absolute path; compiled extensions, which are those that were built last.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.errors import UsageError
from autotune.files.access import HOME
from autotune.files.scratch import HERE, PREFIX, Scratch, sweep
from autotune.program.program import Program, ProgramKind, fingerprint_of
from autotune.program.sources import digest_of

# How users name what to run: the program as it is, or, before the name of a revision, as it was
WRITTEN, COMMIT = "written", "git:"
NOT_LINKED = {"__pycache__", HOME}  # bytecode of today would be replaced by the revision's
NAMED_BY_MODULE = {ProgramKind.MODULE, ProgramKind.MODULE_FUNCTION}
SUBMODULE = "160000"  # the mode under which git stores a submodule's commit
FORGET = ("worktree", "remove", "--force")
# Within a git hook these name another repository or index
OF_A_HOOK = {"GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR"}


@dataclass(frozen=True)
class AtRevision:
    """A program that runs as a revision has it."""

    program: Program
    commit: str


@contextmanager
def at_revision(program: Program, revision: str) -> Iterator[AtRevision]:
    """Check a revision out in a temporary worktree and return the program that runs there.

    The worktree is removed at the end.

    Args:
        revision: A commit, branch or tag, as git reads it.

    Raises:
        UsageError: The program is not in a repository, there is no such revision, or the program is
            not in it.
    """
    root = _root_of(program)
    name = _git(root, "rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}")
    if name.returncode:
        raise UsageError(
            f"There is no revision '{revision}' in {root}. Write git:HEAD~1, git:BRANCH "
            "or git:COMMIT; 'git log --oneline' lists commits."
        )
    commit = name.stdout.split()[-1]
    source = Path(program.source).relative_to(root)
    if _git(root, "cat-file", "-e", f"{commit}:{source.as_posix()}").returncode:
        raise UsageError(
            f"'{source}' is not in revision '{revision}' ({commit[:8]}). Name a revision that has "
            f"it: git log --oneline -- {source}"
        )
    _remove_left(root)
    place = Path(tempfile.gettempdir()).resolve()
    # The name stays, because programs print it and packages may be imported from above it.
    below = Path("tree", root.name or "root")
    # Git notes its worktrees in the repository, so somebody has to tell it if this process cannot
    hooks = [word for name in sorted(OF_A_HOOK) for word in ("-u", name)]
    forget = ("env", *hooks, "git", "-C", str(root), *FORGET, str(HERE / below))
    with Scratch(place, forget) as scratch:
        copy = scratch.path / below
        copy.parent.mkdir()
        # A hook of the user's would run at the end of a checkout
        made = _git(
            root, "-c", f"core.hooksPath={os.devnull}", "worktree", "add", "--detach", copy, commit
        )
        if made.returncode:
            raise UsageError(f"git cannot write the files of {commit[:8]}: {made.stderr.strip()}")
        try:
            _link_untracked(root, copy)
            for path in root.parent.iterdir():  # for paths such as ../data
                if path.name != copy.name:
                    (copy.parent / path.name).symlink_to(path)
            yield AtRevision(_moved(program, root, copy), commit)
        finally:
            _git(root, *FORGET, copy)


def _root_of(program: Program) -> Path:
    """Return the repository of a program."""
    found = _git(Path(program.source).parent, "rev-parse", "--show-toplevel")
    if found.returncode:
        raise UsageError(
            f"{program.file_name} is not in a git repository, so there are no commits of it to "
            f"compare: git says '{found.stderr.strip()}'. Compare configs instead: "
            "autotune compare written best.yaml PROGRAM"
        )
    return Path(found.stdout.rstrip("\n")).resolve()


def _remove_left(root: Path) -> None:
    """Remove worktrees of processes that were killed."""
    for line in _git(root, "worktree", "list", "--porcelain").stdout.splitlines():
        copy = Path(line.removeprefix("worktree "))
        if len(copy.parts) > 3 and copy.parents[1].name.startswith(PREFIX):
            sweep(copy.parents[2])
            if not copy.exists():
                _git(root, *FORGET, copy)


def commit_of(program: Program) -> str:
    """Return the commit at HEAD if it holds the program's script as it was searched; else empty."""
    script = Path(program.source)
    if digest_of(script) != program.fingerprint:
        return ""
    try:
        found = [
            _git(script.parent, *words)
            for words in (
                ("rev-parse", "--verify", "HEAD"),
                ("rev-parse", "--verify", f"HEAD:./{script.name}"),
                ("hash-object", "--no-filters", "--", script.name),
            )
        ]
    except UsageError:  # there is no git
        return ""
    commit, stored, seen = (one.stdout.strip() for one in found)
    is_it = not any(one.returncode for one in found) and stored == seen
    return commit if is_it else ""


def _git(folder: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """Run git in a folder; its exit status tells whether it could."""
    variables = {k: v for k, v in os.environ.items() if k not in OF_A_HOOK}
    try:
        return subprocess.run(
            ["git", "-C", folder, *words],  # noqa: S607 - the user's git, as on their PATH
            capture_output=True,
            text=True,
            errors="surrogateescape",
            check=False,
            stdin=subprocess.DEVNULL,
            env={**variables, "LC_ALL": "C"},
        )
    except FileNotFoundError as error:
        raise UsageError(
            "Comparing commits needs git, which is not on PATH. Install it, or run 'autotune "
            "doctor' in a folder of each commit."
        ) from error


def _link_untracked(root: Path, copy: Path) -> None:
    """Make links to what git does not track, and to the submodules, of which git writes nothing."""
    staged = _git(copy, "ls-files", "--stage", "-z").stdout.split("\0")
    submodules = [line.partition("\t")[2] for line in staged if line.startswith(SUBMODULE)]
    for path in submodules:
        (copy / path).rmdir()  # git makes an empty one
    untracked = _git(root, "ls-files", "--others", "--directory", "-z").stdout.split("\0")
    for path in filter(None, (*submodules, *untracked)):
        _link(root / path, copy / path, copy)


def _link(today: Path, place: Path, copy: Path) -> None:
    """Make a link to a file or folder of today, unless the revision has something in its place."""
    if today.name in NOT_LINKED or not os.path.lexists(today):
        return
    if place.is_dir() and not place.is_symlink() and today.is_dir() and not today.is_symlink():
        for inside in today.iterdir():
            _link(inside, place / inside.name, copy)
        return
    # A link that the revision tracks may lead out of the folder; nothing is written through it.
    parent = place.parent.resolve()
    if os.path.lexists(place) or not parent.is_relative_to(copy) or parent.is_file():
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    place.symlink_to(today)


def _moved(program: Program, root: Path, copy: Path) -> Program:
    """Return the program that starts from the worktree."""

    def moved(path: str) -> str:
        place = Path(path)
        return str(copy / place.relative_to(root)) if place.is_relative_to(root) else path

    typed, source = program.path_typed, moved(program.source)
    target = program.target if program.kind in NAMED_BY_MODULE else moved(program.target)
    stays = not Path(typed).is_absolute() and Path(program.cwd).is_relative_to(root)
    # A package of the repository that was installed with pip install -e would be that of today
    given = program.env.get("PYTHONPATH", os.environ.get("PYTHONPATH", "")).split(os.pathsep)
    entries = [os.path.normpath(Path(program.cwd) / entry) for entry in given if entry]
    roots = [moved(entry) for entry in (*entries, *map(str, _installed_in(root)))]
    path = {"PYTHONPATH": os.pathsep.join(dict.fromkeys(roots))} if roots else {}
    return replace(
        program,
        target=target,
        source=source,
        cwd=moved(program.cwd),
        import_root=moved(program.import_root),
        fingerprint=fingerprint_of(Path(source).read_bytes()),
        path_typed=typed if stays or not typed else target,
        env={**program.env, **path},
    )


def _installed_in(root: Path) -> Iterator[Path]:
    """Yield the folders of a repository from which installed packages are imported."""
    # The first entry is the folder of the script that started this process, unless under -P
    found = [Path(entry) for entry in (sys.path if sys.flags.safe_path else sys.path[1:])]
    for finder in sys.meta_path:
        # Where setuptools cannot add a folder to the path, it installs a finder with a table
        module = sys.modules.get(getattr(finder, "__module__", None) or "")
        table = getattr(module, "MAPPING", {})
        if isinstance(table, dict):
            found += [Path(p).parent for name, p in table.items() if Path(p).name == name]
    ours = Path(__file__).parents[2]
    for folder in found:
        is_inside = folder.is_absolute() and folder.is_relative_to(root)
        if is_inside and not folder.is_relative_to(Path(sys.prefix)) and folder != ours:
            yield folder
