"""Scratch folders: found, measured, and gone in the end, in whatever way a search ends."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from autotune.files import scratch
from autotune.files.scratch import Scratch
from autotune.program.fence_options import FenceOptions
from autotune.rig.fence import raise_fence
from autotune.rig.fence.caches import Prepared, cache_roots
from autotune.rig.fence.room import rooms
from tests.pictures import picture
from tests.rigging import talking, wait_for

# Each makes one of autotune's temporary folders, whose place is the folder for temporary files
MAKES = {
    "of a fence": (
        "from autotune.files.scratch import Scratch\n"
        "made = Scratch(Path(tempfile.gettempdir()))\n(made.path / 'work').mkdir()\n"
        "(made.path / 'work' / 'file').write_text('x')\n(made.path / 'work').chmod(0)\n"
    ),
    "of a command that keeps no record": (
        "from autotune.machine import hardware\n"
        "from autotune.tuning.start.observe import throwaway_rigs\n"
        "from autotune.program.program import parse_program\n"
        "made = throwaway_rigs(parse_program('train.py'), hardware.detect())\nmade.__enter__()\n"
    ),
    "of a commit": (
        "from autotune.program.program import parse_program\n"
        "from autotune.program.revision import at_revision\n"
        "made = at_revision(parse_program('train.py'), 'HEAD')\nmade.__enter__()\n"
    ),
    "of a rank that is not the first": (
        "from types import SimpleNamespace\nfrom autotune.inside.train import _silence\n"
        "_silence(SimpleNamespace(fence=SimpleNamespace(silence=print), remove=print))\n"
    ),
}


@pytest.mark.parametrize("makes", MAKES)
def test_a_process_that_is_killed_leaves_no_temporary_folder(
    makes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project, temporary = tmp_path / "project", tmp_path / "temporary"
    for folder in (project, temporary):
        folder.mkdir()
    monkeypatch.chdir(project)
    (project / "train.py").touch()
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@example.com")
    for words in (("init", "-q"), ("add", "."), ("commit", "-qm", "first")):
        subprocess.run([*git, *words], check=True)
    before = {*(project / ".git").iterdir()}
    monkeypatch.setenv("TMPDIR", str(temporary))
    code = "import sys, tempfile, time\nfrom pathlib import Path\nplace = tempfile.gettempdir()\n"
    waits = "print('made', flush=True)\ntime.sleep(60)\n"
    with talking(code + MAKES[makes] + waits) as (process, _):
        assert [*temporary.iterdir()]
        process.kill()
    assert wait_for(lambda: not [*temporary.iterdir()])
    assert wait_for(lambda: {*(project / ".git").iterdir()} == before)


def test_a_fence_sweeps_what_was_left_in_other_runs_and_in_all_places(tmp_path: Path) -> None:
    run, other, named = (tmp_path / name for name in (".autotune/b", ".autotune/a", "named"))
    for place in (run, other, named):
        (place / f"{scratch.PREFIX}dead").mkdir(parents=True)
        (place / f"{scratch.PREFIX}dead" / scratch.LOCK).touch()
    with raise_fence(FenceOptions(scratch_dir=named), run):
        assert not [*tmp_path.rglob("*dead")]


def test_what_a_dead_search_left_is_swept_and_a_living_one_is_left_alone(tmp_path: Path) -> None:
    dead = tmp_path / f"{scratch.PREFIX}dead"
    (dead / "work").mkdir(parents=True)
    (dead / scratch.LOCK).touch()
    (dead / "work").chmod(0)
    living = Scratch(tmp_path)
    assert not dead.exists()
    other = Scratch(tmp_path)
    assert living.path.is_dir()
    for each in (living, other):
        each.close()
    assert not list(tmp_path.iterdir())


def test_a_folder_that_is_swept_before_it_is_locked_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made, make = list[str](), tempfile.mkdtemp

    def made_and_swept(**where: Any) -> str:
        made.append(make(**where))
        if len(made) == 1:
            scratch.sweep(tmp_path)
        return made[-1]

    monkeypatch.setattr(tempfile, "mkdtemp", made_and_swept)
    with Scratch(tmp_path) as kept:
        scratch.sweep(tmp_path)
        assert [*tmp_path.iterdir()] == [kept.path]
        assert str(kept.path) == made[1]
    assert not [*tmp_path.iterdir()]


def test_a_sweep_touches_nothing_through_links_and_nothing_of_others(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    (victim / "inner").mkdir(parents=True)
    (victim / "inner").chmod(0o755)
    (victim / scratch.LOCK).touch()
    (tmp_path / f"{scratch.PREFIX}link").symlink_to(victim)
    linked_lock = tmp_path / f"{scratch.PREFIX}lock"
    linked_lock.mkdir()
    (linked_lock / scratch.LOCK).symlink_to(victim / scratch.LOCK)
    before = picture(victim, linked_lock)
    scratch.sweep(tmp_path)
    scratch.remove(tmp_path / f"{scratch.PREFIX}link")
    assert picture(victim, linked_lock) == before


def test_writing_more_than_allowed_is_told_with_the_largest_file(tmp_path: Path) -> None:
    (tmp_path / "view").mkdir()
    room = rooms([tmp_path], max_bytes=1 << 20)[0].of("view")
    assert room.overflow() is None
    (tmp_path / "view" / "small.txt").write_text("x")
    (tmp_path / "view" / "model.pt").write_bytes(os.urandom(3 << 20))
    said = room.overflow()
    assert said is not None
    assert "3 MiB to model.pt" in said
    assert "1 MiB are allowed" in said


def test_caches_are_kept_as_they_were_at_the_first_step_and_outputs_are_not(tmp_path: Path) -> None:
    covered, upper, layer = (tmp_path / name for name in ("home", "upper", "layer"))
    for folder in (covered, upper / "me/.cache/hub", upper / "me/project/__pycache__", layer):
        folder.mkdir(parents=True)
    (upper / "me/.cache/hub").chmod(0o750)
    (upper / "me/.cache/hub/weights").write_text("whole")
    (upper / "me/.cache/log").write_text("step 0")
    (upper / "me/project/model.pt").write_text("output")
    (upper / "me/project/__pycache__/train.pyc").write_bytes(b"x")
    (upper / "me/project/data.csv").write_text("downloaded")
    found = Prepared(covered, upper)
    roots = cache_roots({"XDG_CACHE_HOME": str(covered / "me/.cache")})
    found.note([*roots, covered / "me/project/data.csv"], covered / "me/project")
    (upper / "me/.cache/log").write_text("step 1 of a trial")
    (upper / "me/.cache/checkpoint").write_text("made after the first step")
    assert found.keep(layer)
    kept = {str(p.relative_to(layer)) for p in layer.rglob("*") if p.is_file()}
    assert kept == {
        "me/.cache/hub/weights", "me/project/__pycache__/train.pyc", "me/project/data.csv",
    }  # fmt: skip
    assert (layer / "me/.cache/hub").stat().st_mode & 0o777 == 0o750


@pytest.mark.parametrize("moment", ["before it is kept", "between the look and the move"])
@pytest.mark.parametrize("swapped", ["evil", "evil/in", "layer/evil", "evil/in/f"])
def test_a_link_that_a_trial_leaves_leads_to_no_file_of_the_user(
    moment: str, swapped: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    covered, upper, layer, real = (tmp_path / name for name in ("home", "upper", "layer", "real"))
    for folder in (covered, upper / "evil/in", layer, real / "in"):
        folder.mkdir(parents=True)
    theirs, users = upper / "evil/in/f", real / "in/f"
    for file in (theirs, users):
        file.write_text("whole")
        os.utime(file, (1, 1))
    for folder in (real / "in", real):
        folder.chmod(0o555)
    found = Prepared(covered, upper)
    found.note([covered], covered)
    before = picture(real)
    place = tmp_path / swapped if swapped.startswith("layer") else upper / swapped
    move = os.rename

    def swap() -> None:
        if not place.is_symlink():
            if place.exists():
                move(place, tmp_path / "aside")
            place.symlink_to(real / swapped.partition("evil")[2].strip("/"))

    if moment == "before it is kept":
        swap()
    else:

        def swap_and_move(*places: Any, **within: Any) -> None:
            swap()
            move(*places, **within)

        monkeypatch.setattr(os, "rename", swap_and_move)
    found.keep(layer)
    monkeypatch.undo()
    assert picture(real) == before
    scratch.remove(layer)
    scratch.remove(upper)
    assert picture(real) == before


def test_a_link_that_takes_the_place_of_a_folder_while_it_is_removed_changes_no_mode(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, victim = tmp_path / "scratch/work", tmp_path / "victim"
    for each in (folder, victim):
        each.mkdir(parents=True)
    victim.chmod(0o500)
    before, chmod = picture(victim), os.chmod

    def swapping(*arguments: Any, **options: Any) -> None:
        folder.rename(tmp_path / "aside")
        folder.symlink_to(victim)
        chmod(*arguments, **options)

    monkeypatch.setattr(os, "chmod", swapping)
    scratch.remove(tmp_path / "scratch")
    assert picture(victim) == before
    assert not (tmp_path / "scratch").exists()
