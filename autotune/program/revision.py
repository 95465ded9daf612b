"""A program as a git revision has it, next to the files of today that git does not track.

What git tracks comes from the revision: the script, the modules of the repository, their settings.
What git does not track is the same in each revision: data, outputs, environments. So the files of
the revision are written to a temporary folder, together with links to all the others, and the
program runs there in the same place of the tree as the user would start it in.

Covered: ``python -m``, console scripts and packages installed with ``pip install -e``; paths to
what lies next to the repository; changes that were not committed stay where they are. The
repository itself is only read: no worktree, stash or checkout. What git says in the temporary
folder is true of the revision.

Not covered: submodules, which are those of today; arguments and settings that name a file of the
repository by its absolute path; compiled extensions, which are those that were built last.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from autotune.errors import UsageError
from autotune.program.program import Program, ProgramKind, fingerprint_of

# How users name what to run: the program as it is, or, before the name of a revision, as it was
WRITTEN, COMMIT = "written", "git:"
# Bytecode of the user's folder would be replaced by that of the revision; runs are autotune's
NOT_LINKED = {"__pycache__", ".autotune", ".git"}
NAMED_BY_MODULE = {ProgramKind.MODULE, ProgramKind.MODULE_FUNCTION}
SUBMODULE = "160000"  # the mode under which git stores a submodule's commit
PATH = "PYTHONPATH"
# Within a git hook these name another repository or index
OTHER_REPOSITORY = {
    *("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_PREFIX", "GIT_COMMON_DIR"),
    *("GIT_OBJECT_DIRECTORY", "GIT_NAMESPACE"),
}


@dataclass(frozen=True)
class AtRevision:
    """A program that runs as a revision has it.

    Attributes:
        program: The program, in a temporary folder.
        commit: The commit's full name.
    """

    program: Program
    commit: str


@contextmanager
def at_revision(program: Program, revision: str) -> Iterator[AtRevision]:
    """Write a revision's files to a temporary folder and return the program that runs there.

    The folder is removed at the end.

    Args:
        program: The program as it is in the user's folder.
        revision: A commit, branch or tag, as git reads it.

    Raises:
        UsageError: The program is not in a repository, there is no such revision, or the program is
            not in it.
    """
    repository = _Repository.of(program)
    commit = repository.commit(revision)
    source = Path(program.source).relative_to(repository.root)
    if not repository.has(commit, source):
        raise UsageError(
            f"'{source}' is not in revision '{revision}' ({commit[:8]}). Name a revision that has "
            f"it: git log --oneline -- {source}"
        )
    with tempfile.TemporaryDirectory(prefix="autotune-") as folder:
        # The name stays, because programs print it and packages may be imported from above it.
        copy = Path(folder).resolve() / (repository.root.name or "root")
        copy.mkdir()
        repository.write(commit, copy)
        _link_neighbours(repository.root, copy)
        yield AtRevision(_Moved(repository.root, copy).program(program), commit)


@dataclass(frozen=True)
class _Repository:
    """The repository that a program lies in; it is only read."""

    root: Path

    @classmethod
    def of(cls, program: Program) -> _Repository:
        """Return the repository of a program.

        Raises:
            UsageError: There is none, or git is not installed.
        """
        folder = Path(program.source).parent
        found = _git(folder, "rev-parse", "--show-toplevel")
        if found.returncode:
            raise UsageError(
                f"{program.file_name} is not in a git repository, so there are no commits of it to "
                f"compare: git says '{found.stderr.strip()}'. Compare configs instead: "
                "autotune compare written best.yaml PROGRAM"
            )
        return cls(Path(found.stdout.rstrip("\n")).resolve())

    def commit(self, revision: str) -> str:
        """Return the full name of a revision's commit.

        Raises:
            UsageError: There is no such revision.
        """
        is_option = revision.startswith("-")  # git would take it for one
        found = None if is_option else self._ask("rev-parse", "--verify", f"{revision}^{{commit}}")
        if found is None or found.returncode:
            raise UsageError(
                f"There is no revision '{revision}' in {self.root}. Write git:HEAD~1, git:BRANCH "
                "or git:COMMIT; 'git log --oneline' lists commits."
            )
        return found.stdout.strip()

    def has(self, commit: str, path: Path) -> bool:
        """Return whether a commit has a file."""
        return self._ask("cat-file", "-e", f"{commit}:{path.as_posix()}").returncode == 0

    def write(self, commit: str, folder: Path) -> None:
        """Write a commit's files to a folder, and links to what git does not track.

        Raises:
            UsageError: git cannot write them.
        """
        index = {"GIT_INDEX_FILE": str(folder.parent / "autotune-index")}
        for words in (
            ["read-tree", commit],
            ["checkout-index", "--all", "--quiet", f"--prefix={folder}{os.sep}"],
        ):
            done = self._ask(*words, variables=index)
            if done.returncode:
                raise UsageError(
                    f"git cannot write the files of {commit[:8]}: {done.stderr.strip()}"
                )
        self._give_history(commit, folder, Path(index["GIT_INDEX_FILE"]))
        staged = _git(folder, "ls-files", "--stage", "-z").stdout.split("\0")
        submodules = [line.partition("\t")[2] for line in staged if line.startswith(SUBMODULE)]
        for path in submodules:
            if (folder / path).is_dir():
                (folder / path).rmdir()  # git makes an empty one
        untracked = self._ask("ls-files", "--others", "--directory", "-z").stdout.split("\0")
        for path in filter(None, (*submodules, *untracked)):
            _link(self.root / path, folder / path, folder)

    def _give_history(self, commit: str, folder: Path, index: Path) -> None:
        """Make a repository of a folder, which borrows its objects and is at the commit.

        Training scripts log their commit, and some of them fail where git knows none.
        """
        own = self.root / self._ask("rev-parse", "--git-common-dir").stdout.strip()
        kind = self._ask("rev-parse", "--show-object-format").stdout.strip()
        forms = {"GIT_DEFAULT_HASH": kind, "GIT_DEFAULT_REF_FORMAT": "files"}
        _git(folder, "init", "--quiet", "--template=", variables=forms)
        copy = folder / ".git"
        (copy / "objects" / "info").mkdir(exist_ok=True)
        (copy / "objects" / "info" / "alternates").write_text(f"{own / 'objects'}\n")
        shutil.copytree(own / "refs", copy / "refs", dirs_exist_ok=True)
        for name in ("packed-refs", "shallow"):
            if (own / name).is_file():
                shutil.copy(own / name, copy / name)
        (copy / "HEAD").write_text(f"{commit}\n")
        index.rename(copy / "index")

    def _ask(
        self, *words: str, variables: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        return _git(self.root, *words, variables=variables)


def _git(
    folder: Path, *words: str, variables: Mapping[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    """Run git in a folder; its exit status tells whether it could.

    Raises:
        UsageError: git is not installed.
    """
    inherited = {k: v for k, v in os.environ.items() if k not in OTHER_REPOSITORY}
    try:
        return subprocess.run(
            ["git", "-C", str(folder), *words],  # noqa: S607 - the user's git, as on their PATH
            capture_output=True,
            text=True,
            errors="surrogateescape",
            check=False,
            stdin=subprocess.DEVNULL,
            env={**inherited, "LC_ALL": "C", **(variables or {})},
        )
    except FileNotFoundError as error:
        raise UsageError(
            "Comparing commits needs git, which is not on PATH. Install it, or run 'autotune "
            "measure' in a folder of each commit."
        ) from error


def _link(own: Path, copy: Path, folder: Path) -> None:
    """Make a link to a file or folder of today, unless the revision has something in its place.

    Where the revision has files in the same folder, the folder's contents are linked one by one.
    """
    if own.name in NOT_LINKED or not os.path.lexists(own):
        return
    if copy.is_dir() and not copy.is_symlink() and own.is_dir() and not own.is_symlink():
        for inside in own.iterdir():
            _link(inside, copy / inside.name, folder)
        return
    # A link that the revision tracks may lead out of the folder; nothing is written through it.
    if os.path.lexists(copy) or not copy.parent.resolve().is_relative_to(folder):
        return
    try:
        copy.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        return  # the revision has a file where there is a folder today
    copy.symlink_to(own)


def _link_neighbours(root: Path, copy: Path) -> None:
    """Make links to what lies next to the repository, for paths such as ``../data``."""
    try:
        neighbours = [path for path in root.parent.iterdir() if path.name != root.name]
    except OSError:
        return
    for path in neighbours:
        if not os.path.lexists(copy.parent / path.name):
            (copy.parent / path.name).symlink_to(path)


@dataclass(frozen=True)
class _Moved:
    """Paths within a repository, as paths within the folder that holds a revision of it."""

    root: Path
    copy: Path

    def program(self, program: Program) -> Program:
        """Return the program that starts from the folder."""
        typed, cwd = program.path_typed, Path(program.cwd)
        stays = not Path(typed).is_absolute() and cwd.is_relative_to(self.root)
        source = self.path(program.source)
        target = program.target
        if program.kind not in NAMED_BY_MODULE:
            target = self.path(target)
        return replace(
            program,
            target=target,
            source=source,
            cwd=self.path(program.cwd),
            import_root=self.path(program.import_root) if program.import_root else "",
            fingerprint=fingerprint_of(Path(source).read_bytes()),
            path_typed=typed if stays or not typed else target,
            env={**program.env, **self._variables(program)},
        )

    def path(self, path: str) -> str:
        """Return where a path of the repository is in the folder; others stay as they are."""
        if not Path(path).is_relative_to(self.root):
            return path
        return str(self.copy / Path(path).relative_to(self.root))

    def _variables(self, program: Program) -> dict[str, str]:
        """Return the import path on which the repository's packages come from the revision.

        Otherwise a package that was installed with ``pip install -e`` would be that of today.
        """
        typed = program.env.get(PATH, os.environ.get(PATH, "")).split(os.pathsep)
        folders = [os.path.normpath(Path(program.cwd) / entry) for entry in typed if entry]
        entries = [self.path(folder) for folder in folders]
        for folder in _installed_in(self.root):
            moved = Path(self.path(str(folder)))
            if moved.is_dir() and str(moved) not in entries:
                entries.append(str(moved))
        return {PATH: os.pathsep.join(entries)} if entries else {}


def _installed_in(root: Path) -> Iterator[Path]:
    """Yield the folders of a repository from which installed packages are imported."""
    # The first entry is the folder of the script that started this process, unless under -P
    for entry in sys.path if sys.flags.safe_path else sys.path[1:]:
        yield from _ours(Path(entry), root)
    for finder in sys.meta_path:
        # Where setuptools cannot add a folder to the path, it installs a finder with a table
        module = sys.modules.get(getattr(finder, "__module__", None) or "")
        table = getattr(module, "MAPPING", {})
        for name, place in table.items() if isinstance(table, dict) else ():
            if Path(place).name == name:
                yield from _ours(Path(place).parent, root)


def _ours(folder: Path, root: Path) -> Iterator[Path]:
    """Yield a folder if it is the repository's, and not part of an environment or autotune's."""
    is_environment = folder.is_relative_to(Path(sys.prefix))
    is_autotune = Path(__file__).parents[2] == folder
    if folder.is_absolute() and folder.is_relative_to(root) and not (is_environment or is_autotune):
        yield folder
