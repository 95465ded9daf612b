"""Programs: scripts and functions, found, named, fingerprinted and told apart."""

import hashlib
import json
import os
import pickle
import re
import stat
import sys
from dataclasses import replace
from json.encoder import py_encode_basestring
from pathlib import Path

import pytest

from autotune.errors import ProgramError, RunDirectoryError, UsageError
from autotune.inside import run_program
from autotune.inside.run_program import RecordedConfig
from autotune.program.config import Config
from autotune.program.program import ProgramKind, parse_program, program_of
from autotune.program.sources import Sources, changed, digest_of


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory with a script, whose name has spaces and quotes."""
    place = tmp_path / 'it\'s a "place"'
    place.mkdir()
    (place / "train.py").write_text("print('training')\n")
    return place


def test_a_script_is_named_by_its_path(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = parse_program("train.py", ["--epochs", "3"], place)
    assert (program.kind, program.function, program.name) == (ProgramKind.SCRIPT, "", "train")
    assert Path(program.target) == (place / "train.py").resolve()
    assert Path(program.cwd) == Path(program.import_root) == place.resolve()
    assert program.args == ("--epochs", "3")
    assert str(program) == "train.py --epochs 3"
    (place / "below").mkdir()
    absolute = parse_program(str(place / "train.py"), program.args, place)
    assert replace(absolute, path_typed="train.py") == program
    from_below = parse_program("../train.py", [], place / "below")
    assert (from_below.target, from_below.import_root) == (program.target, program.import_root)
    assert str(from_below) == "../train.py"
    monkeypatch.chdir(place)
    assert parse_program("train.py", program.args) == program
    (place / "train").write_text("print('training')\n")
    assert parse_program("train", [], place).kind is ProgramKind.SCRIPT, "without a suffix"


def test_functions_of_files_and_modules_are_found_without_importing_them(place: Path) -> None:
    program = parse_program("train.py:main", [], place)
    assert Path(program.target) == (place / "train.py").resolve()
    assert (program.function, program.name) == ("main", "main")
    assert (program.kind, str(program)) == (ProgramKind.FILE_FUNCTION, "train.py:main")
    for file in ("models/train.py", "other/train/__init__.py"):
        source = place / file
        source.parent.mkdir(parents=True)
        source.write_text("raise RuntimeError('imported')\n")
        name = f"{file.partition('/')[0]}.train"
        program = parse_program(f"{name}:main", ["x"], place)
        assert (program.target, program.function, program.name) == (name, "main", "main")
        assert (program.kind, str(program)) == (ProgramKind.MODULE_FUNCTION, f"{name}:main x")
        assert Path(program.import_root) == place.resolve()
        assert name not in sys.modules
    assert parse_program("json.tool:main", [], place).target == "json.tool", "from anywhere"


def test_what_is_missing_is_answered_with_the_nearest_or_its_place(place: Path) -> None:
    (place / "project").mkdir()
    for text, said in {
        "trian.py": "There is no program 'trian.py'. Did you mean 'train.py'?",
        "nowhere/at_all.py:main": f"Paths are taken from {place.resolve()}.",
        "zzz.py": f"Paths are taken from {place.resolve()}.",
        "project": "'project' is a directory. Name the training script in it: project/train.py",
        "models.missing:main": "There is no module 'models.missing' on the import path.",
    }.items():
        with pytest.raises(UsageError, match=re.escape(said)):
            parse_program(text, [], place)


def test_the_fingerprint_changes_with_the_source_and_only_with_it(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = parse_program("train.py", [], place)
    os.utime(place / "train.py", (0, 0))
    assert parse_program("train.py", ["--other"], place).fingerprint == before.fingerprint
    (place / "train.py").write_text("print('training more')\n")
    after = parse_program("train.py", [], place)
    assert after.fingerprint != before.fingerprint
    monkeypatch.chdir(place)
    assert changed(before.files) == ["train.py"]
    assert not changed(after.files)
    (place / "train.py").unlink()
    assert changed(after.files) == ["train.py"]


def test_a_function_that_can_be_imported_is_named_and_not_pickled(tmp_path: Path) -> None:
    for function, module in ((json.dumps, "json"), (py_encode_basestring, "json.encoder")):
        program = program_of(function, ["x"], tmp_path)
        assert (program.kind, program.target) == (ProgramKind.MODULE_FUNCTION, module)
        assert (program.function, program.name) == (function.__name__, function.__name__)
        assert program.args == ("x",)
        assert Path(program.import_root) == Path(json.__file__).resolve().parent.parent
    assert list(tmp_path.iterdir()) == []


def test_a_function_that_no_import_finds_is_pickled_with_what_it_holds(tmp_path: Path) -> None:
    def nested(config: Config) -> int:
        return 3 * int(config["batch_size"])

    found = []
    for function in (nested, lambda config: 3 * config["batch_size"]):
        program = program_of(function, [], tmp_path)
        assert program.kind is ProgramKind.PICKLED_FUNCTION
        assert program.name == function.__name__
        restored = pickle.loads(Path(program.target).read_bytes())
        assert restored(Config({"batch_size": 4})) == 12
        found.append(program.fingerprint)
    assert found[0] == program_of(nested, [], tmp_path).fingerprint
    assert found[0] != found[1], "it follows the source"


def test_only_files_that_the_disk_has_as_they_were_imported_are_the_users(tmp_path: Path) -> None:
    model, made, cached = (tmp_path / name for name in ("model.py", "made.py", "cache/ops.so"))
    cached.parent.mkdir()
    for path in (model, cached):
        path.write_text("first")
    first, second = digest_of(model), hashlib.sha256(b"second").hexdigest()
    sources = Sources({}, [cached.parent])
    for path, digest in ((made, first), (made, second), (cached, first), (cached, second)):
        sources.saw(str(path), digest, 1)
    assert not sources.known, "a trial has made them"
    config = tmp_path / "config.py"  # which a program writes for each of its runs
    config.write_text("first")
    changed_ns = config.stat().st_mtime_ns
    sources.saw(str(config), first, changed_ns + 1)
    assert not sources.known, "the trial's own copy has the same content"
    sources.saw(str(config), first, changed_ns)
    sources.saw(str(config), second, changed_ns + 2)
    assert sources.known.pop(str(config)) == first, "the disk has it as it was"
    model.write_text("second")  # after a process has imported it, and before that was heard
    sources.saw(str(model), first, model.stat().st_mtime_ns - 1)
    with pytest.raises(ProgramError, match=r"model\.py has changed"):
        sources.saw(str(model), second, model.stat().st_mtime_ns)


class Strange:
    """Runs what a stranger wants when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.mark,)


def test_a_pickle_runs_only_as_autotune_wrote_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run_program, "note_program", lambda _: None)
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(sys, "path", [*sys.path])
    ran, strange = tmp_path / "ran", tmp_path / "strange"

    def train() -> None:
        ran.touch()

    before = os.umask(0o002)
    program = program_of(train, [], tmp_path)
    os.umask(before)
    assert stat.S_IMODE(Path(program.target).stat().st_mode) == 0o600
    run_program.run(program, RecordedConfig({}))
    assert ran.exists()
    assert not changed(program.files)
    Path(program.target).write_bytes(pickle.dumps(Strange(strange)))
    with pytest.raises(RunDirectoryError, match="is not what autotune wrote, so it is not run"):
        run_program.run(program, RecordedConfig({}))
    assert not strange.exists()
    assert changed(program.files)
