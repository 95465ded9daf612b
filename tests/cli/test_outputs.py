"""What autotune writes for people: whole, and never over what somebody else wrote or still needs.

The commands are real; searches run on the scripted machine in virtual time.
"""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

import autotune
from autotune.cli.app import app
from autotune.errors import UsageError
from autotune.exports import formats
from autotune.results import bestfile
from autotune.results.finding import Finding
from autotune.results.verdict import verdict
from autotune.tuning.events import Events, Phase
from tests.docs.project import FAST, records_in_memory, scripted
from tests.made import BASELINE, CHANGES, make_best
from tests.pictures import picture
from tests.rigging import run_command
from tests.scripted import Script

YOLO = "# my own\nlr0: 0.01\nmomentum: 0.937\n"
SAME, OTHER = "python -u train.py --epochs 9", "other.py"
FASTER, AS_WRITTEN = FAST, Script({})


@pytest.fixture(autouse=True)
def here(workplace: Path) -> Iterator[Path]:
    """A folder with a program; the records of its searches stay in memory."""
    for name in ("train.py", "other.py"):
        (workplace / name).write_text(f"pass  # {name}\n")
    with records_in_memory():
        yield workplace


@pytest.fixture
def past(here: Path, searches: Path) -> Path:
    """A folder with a search ``fast`` that is over and has a record."""
    shutil.copytree(searches / ".autotune", here / ".autotune")
    return here


def said(*words: str, status: int = 0) -> Result:
    done = CliRunner().invoke(app, words)
    assert done.exit_code == status, done.output or done.exception
    return done


def search(*options: str, script: Script = FASTER, status: int = 0) -> Result:
    with scripted(script):
        line = ("search", "--budget", "6m", "--tune", "workers", *options, "train.py")
        return said(*line, status=status)


def best_of(command: str, *, is_gain: bool = True) -> str:
    """Return the text of an earlier best.yaml that was made for a command."""
    best = make_best(config={**BASELINE, **CHANGES} if is_gain else BASELINE, program=command)
    search = best.search.model_copy(update={"digest": "0" * 12})
    return best.model_copy(update={"search": search}).text()


def lie(path: Path, what: str) -> None:
    """Put something at a path."""
    if what == "link":
        path.with_name("real.yaml").write_text(best_of(SAME))
        path.symlink_to("real.yaml")
    elif what == "folder":
        path.mkdir()
    else:
        path.write_text(what)


LEFT = {
    "foreign": (YOLO, FASTER, "nothing in it says that autotune wrote it"),
    "other program": (best_of(OTHER), FASTER, f"it is about another program ({OTHER})"),
    "other, no gain": (best_of(OTHER, is_gain=False), FASTER, "it is about another program"),
    "torn": (best_of(SAME)[:300], FASTER, "it cannot be read"),
    "link": ("link", FASTER, "it is a link"),
    "folder": ("folder", FASTER, "it is a folder"),
}


@pytest.mark.parametrize(("what", "script", "why"), LEFT.values(), ids=LEFT)
def test_what_a_search_may_not_replace_stays_and_one_line_names_both_files(
    here: Path, what: str, script: Script, why: str
) -> None:
    best, own = here / "best.yaml", Path(".autotune/train/best.yaml")
    lie(best, what)
    before = (best.lstat(), best.is_file() and best.read_text())
    done = search(script=script)
    assert (best.lstat(), best.is_file() and best.read_text()) == before
    (line,) = [line for line in done.stderr.splitlines() if "left as it is" in line]
    assert line.removeprefix("! ").startswith("best.yaml ")
    assert why in line
    assert str(own) in line
    # All that is said afterwards names the file that holds the config
    assert f"autotune run {own} train.py" in done.stdout
    assert f"autotune run {own} train.py" in own.with_name("report.html").read_text()
    if what is YOLO:
        data = json.loads(search("--json").stdout)
        assert bestfile.read(Path(data["config"])).config == data["best"]["config"]


OLD = {"none": None, "empty": "", "no gain": best_of(SAME, is_gain=False), "gain": best_of(SAME)}


@pytest.mark.parametrize("old", OLD.values(), ids=OLD)
def test_a_newer_gain_replaces_the_older_one_of_the_program_which_is_kept(
    here: Path, old: str | None
) -> None:
    best, kept = here / "best.yaml", here / "best.yaml.1"
    if old is not None:
        best.write_text(old)
    done = search()
    assert bestfile.read(best).config == {"workers": 1}
    assert "autotune run best.yaml train.py" in done.stdout
    if old == best_of(SAME):
        assert kept.read_text() == old
        assert "the 1.42x that it held is kept as best.yaml.1" in done.stderr
        kept.write_text(YOLO)  # where the next one would be kept
        assert "best.yaml.1, which is not autotune's" in search().stderr
        assert bestfile.read(best).config == {"workers": 1}
        assert kept.read_text() == YOLO
    else:
        assert not kept.exists()
        assert "best.yaml.1" not in done.stderr


def test_best_yaml_alone_serves_run_apply_and_every_export(here: Path) -> None:
    """Copied to another folder with the program, it does what it does where the search was."""
    (here / "train.py").write_text("import sys\nprint('trained', sys.argv[1:])\n")
    search()
    there = here.parent / "it's elsewhere"
    there.mkdir()
    for name in ("best.yaml", "train.py"):
        shutil.copy(name, there)
    commands: list[tuple[str, ...]] = [("export", "--to", name) for name in formats()]
    commands += [
        ("export", "--to", "snippet", "--json"),
        ("run", "--print-command", "best.yaml", "train.py"),
        ("run", "--print-command", "--json", "best.yaml", "train.py"),
    ]
    printed = [said(*words) for words in commands]
    os.chdir(there)
    for words, before in zip(commands, printed, strict=True):
        again = said(*words)
        assert (again.stdout, again.stderr) == (before.stdout, before.stderr), words
    ran = run_command("run", "best.yaml", "train.py", "x")
    assert (ran.stdout, ran.stderr) == ("trained ['x']\n", "")
    applies = "import autotune; autotune.apply('best.yaml'); print('applied')"
    done = subprocess.run([sys.executable, "-c", applies], capture_output=True, text=True)  # noqa: PLW1510
    said_so = "autotune: best.yaml sets workers=1\n"
    assert (done.stdout, done.stderr) == ("applied\n", said_so)


SLOW = Script({"workers": {1: 1.5}}, start_s=20.0)


def test_what_is_not_confirmed_is_a_candidate_which_a_later_claim_replaces(here: Path) -> None:
    with scripted(SLOW):
        first = autotune.search("train.py", budget="45s", tune=["workers"], output="best.yaml")
    assert first.finding is Finding.UNCONFIRMED
    candidate, own = first.own_file, first.own_file.with_name("best.yaml")
    assert candidate.name == "candidate.yaml"
    assert not own.exists()
    assert not (here / "best.yaml").exists()
    held = bestfile.read(candidate)
    assert (held.confirmed, held.config) == (False, {"workers": 1})
    assert first.candidate_speedup is not None
    assert held.speedup.estimate == pytest.approx(first.candidate_speedup.estimate, abs=1e-4)
    told = said("run", "--print-command", str(candidate), "train.py").stderr
    assert [line for line in told.splitlines() if "not confirmed" in line]
    candidate.with_name("study.db").touch()  # the record is in memory
    why = said("export", "--to", "snippet", "train", status=2).stderr
    assert "not confirmed" in why
    assert str(candidate) in why
    with scripted(SLOW):
        second = autotune.resume("train", budget="10m", output="best.yaml")
    assert second.finding is Finding.FASTER
    assert own.is_file()
    assert not candidate.exists()
    assert (here / "best.yaml").is_file()


def test_a_search_that_finds_nothing_writes_its_result_and_leaves_best_yaml(here: Path) -> None:
    (here / "best.yaml").write_text(best_of(SAME))
    search(script=AS_WRITTEN)
    assert (here / "best.yaml").read_text() == best_of(SAME)
    folder = Path(".autotune/train")
    assert not [*folder.glob("*.yaml")]
    data = json.loads((folder / "result.json").read_text())
    assert (data["config"], data["best"]["config"], data["schema"]) == (None, {}, 2)
    (folder / "study.db").touch()  # the record is in memory
    why = said("export", "--to", "snippet", "train", status=2).stderr
    assert "has no best.yaml: it found nothing faster. 'autotune show train' says why" in why


WRITES = {
    "search": ("search", "train.py"),
    "resume": ("resume", "fast"),
    "report": ("show", "--html", "fast"),
    "export": ("export", "--to", "sbatch", "fast"),
}


@pytest.mark.parametrize(("name", "words"), WRITES.items())
def test_a_file_that_the_user_named_is_refused_before_anything_starts(
    past: Path, name: str, words: tuple[str, ...]
) -> None:
    (past / "other.yaml").write_text(best_of(OTHER))
    before = picture(past)
    refused = {
        "train.py": "nothing in it says that autotune wrote it",
        os.devnull: "it is not a regular file",
    }
    refused[".autotune"] = "it is a folder"
    is_best = name in {"search", "resume"}
    # Of another kind: a page is no export, and neither is a best.yaml
    refused["other.yaml"] = (
        "another program (other.py)" if is_best else "nothing in it says that autotune wrote it"
    )
    for output, why in refused.items():
        told = said(words[0], "-o", output, *words[1:], status=2).stderr
        assert f"'{output}' cannot be written: " in told
        assert why in told
        assert ("--force" in told) is output.endswith((".py", ".yaml"))
        assert len(told.splitlines()) == 1
    told = said(words[0], "--force", "-o", os.devnull, *words[1:], status=2).stderr
    assert "it is not a regular file" in told
    assert picture(past) == before


@pytest.mark.parametrize(("name", "words"), [*WRITES.items()][2:])
def test_what_the_user_named_is_replaced_by_force_and_through_links(
    past: Path, name: str, words: tuple[str, ...]
) -> None:
    link, file = past / "link", past / "train.py"
    link.symlink_to(file)
    said(words[0], "--force", "-o", "train.py", *words[1:])
    first = file.read_text()
    assert "Written by autotune" in first
    assert not said(words[0], "-o", "link", *words[1:]).stderr
    assert (link.is_symlink(), file.read_text()) == (True, first)
    file.write_text(first + "# mine\n")  # the batch script asks its readers to add lines
    file.chmod(0o640)
    told = said(words[0], "-o", "link", *words[1:]).stderr
    assert told == "What link held is kept as train.py.1.\n"
    kept = past / "train.py.1"
    assert (file.read_text(), kept.read_text()) == (first, first + "# mine\n")
    assert {one.stat().st_mode & 0o777 for one in (file, kept)} == {0o640}


def test_python_has_the_same_rules(past: Path) -> None:
    (past / "other.yaml").write_text(best_of(OTHER))
    program = past / "train.py"
    for name, why in (("train.py", "nothing in it says"), ("other.yaml", "another program")):
        with scripted(FASTER), pytest.raises(UsageError, match=why):
            autotune.search(program, output=name)
        with pytest.raises(UsageError, match=why):
            autotune.load("fast").save(name)
    assert not (past / ".autotune" / "train").exists()
    result = autotune.load("fast")
    assert result.save("other.yaml", force=True) == Path("other.yaml")
    assert bestfile.read(past / "other.yaml").config == dict(result.changes)
    with scripted(AS_WRITTEN):
        nothing = autotune.search(program, budget="3m", tune=["workers"], output="a.yaml")
    assert not (past / "a.yaml").exists()
    with pytest.raises(UsageError, match="nothing to save"):
        nothing.save("a.yaml", force=True)
    assert not (past / "a.yaml").exists()


@pytest.mark.parametrize("name", formats())
def test_an_export_replaces_only_one_that_says_who_wrote_it(here: Path, name: str) -> None:
    (here / "best.yaml").write_text(best_of(SAME))
    says_so = "Written by autotune" in said("export", "--to", name).stdout
    assert says_so is (name in {"accelerate", "lightning", "sbatch"})
    said("export", "--to", name, "-o", "out")
    again = said("export", "--to", name, "-o", "out", status=0 if says_so else 2)
    assert says_so or "nothing in it says that autotune wrote it" in again.stderr
    said("export", "--to", name, "-o", "out", "--force")


@pytest.mark.parametrize("name", formats())
def test_an_open_quote_in_the_command_is_told_with_its_line(here: Path, name: str) -> None:
    text = best_of(SAME)
    (here / "best.yaml").write_text(text.replace(f"program: {SAME}", 'program: train.py --name "a'))
    told = said("export", "--to", name, status=2).stderr
    assert "best.yaml:3: 'program'" in told
    assert "No closing quotation" in told


def test_a_batch_script_names_the_file_that_it_was_made_from(here: Path) -> None:
    path = here / "it's other" / "fast.yaml"
    path.parent.mkdir()
    path.write_text(best_of(SAME))
    text = said("export", "--to", "sbatch", "it's other/fast.yaml").stdout
    words = subprocess.run(
        ["bash", "-c", f"srun() {{ printf '%s\\n' \"$@\"; }}\n{text}"],
        capture_output=True, text=True, check=True,
    ).stdout.splitlines()  # fmt: skip
    assert words[1:5] == ["autotune", "run", "it's other/fast.yaml", "--"]


@pytest.fixture
def full_disk(tmp_path: Path) -> Iterator[Path]:
    """A folder on a disk that has no room left."""
    if os.geteuid() != 0:
        pytest.skip("only root mounts a disk")
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = ["mount", "-t", "tmpfs", "-o", "size=64k", "none", str(folder)]
    if subprocess.run(mounted, check=False).returncode:
        pytest.skip("nothing can be mounted here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def test_a_full_disk_leaves_the_old_file_and_the_result(past: Path, full_disk: Path) -> None:
    named = {
        "report": '<meta content="Written by autotune report">',  # the new one takes many pages
        "export": "# Written by autotune export",
        "search": best_of(SAME),
    }
    for name, text in named.items():
        (full_disk / name).write_text(text)
    (full_disk / "rest").write_bytes(bytes(4096 * os.statvfs(full_disk).f_bavail))
    for name in ("report", "export"):
        done = CliRunner().invoke(app, [*WRITES[name], "-o", str(full_disk / name)])
        assert (full_disk / name).read_text() == named[name]
        assert "No space left on device" in done.stderr
    done = search("-o", str(full_disk / "search"))
    assert "No space left on device" in done.stderr
    assert "autotune run .autotune/train/best.yaml" in done.stdout
    assert {name: (full_disk / name).read_text() for name in named} == named
    assert {one.name for one in full_disk.iterdir()} == {*named, "rest"}


class Filling(Events):
    """Fills the disk of the current folder while the config is confirmed."""

    def __init__(self) -> None:
        self.warned: list[str] = []

    def on_phase(self, phase: Phase) -> None:
        if phase is Phase.CONFIRM:
            with Path("rest").open("ab") as rest:
                rest.write(bytes(4096 * os.statvfs(".").f_bavail))

    def warn(self, text: str) -> None:
        self.warned.append(text)


def test_a_disk_that_fills_up_during_a_search_costs_no_result(
    full_disk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = Path("train.py").absolute()
    monkeypatch.chdir(full_disk)
    events = Filling()
    with scripted(FASTER):
        result = autotune.search(
            program, budget="6m", tune=["workers"], output="best.yaml", events=events
        )
    assert result.changes == {"workers": 1}
    copied, own = (said for said in events.warned if "No space left on device" in said)
    assert copied == "best.yaml cannot be written: No space left on device."
    assert own.startswith("'.autotune/train/best.yaml' cannot be written")
    assert "'autotune resume train' writes it" in own
    more = verdict(result, result.own_file).rest[-1].text
    assert "report.html" not in more, "no file is named that is not there"
    assert {one.name for one in full_disk.iterdir()} == {".autotune", "rest"}


def test_what_is_written_survives_a_power_loss(past: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[str] = []
    sync = os.fsync

    def fsync(number: int) -> None:
        synced.append(str(Path(f"/proc/self/fd/{number}").readlink()))
        sync(number)

    monkeypatch.setattr(os, "fsync", fsync)
    search()
    said("export", "--to", "sbatch", "-o", "train.sbatch")
    run = past / ".autotune" / "train"
    own = (run / "best.yaml", run / "result.json", run / "report.html")
    for path in (past / "best.yaml", past / "train.sbatch", *own):
        part = next(
            n for n, one in enumerate(synced) if one.startswith(f"{path.parent}/.{path.name}.")
        )
        assert str(path.parent) in synced[part + 1 :]
    assert {path.stat().st_mode & 0o777 for path in own} == {0o600}


def test_of_two_searches_that_write_at_once_one_whole_file_is_left(
    past: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    results = [autotune.load(name) for name in ("fast", "slow")]
    both, here, sync = threading.Barrier(2, timeout=60), threading.local(), os.fsync

    def fsync(number: int) -> None:
        if not vars(here):  # the first file of this thread is written, and not yet in its place
            here.is_met = both.wait()
        sync(number)

    monkeypatch.setattr(os, "fsync", fsync)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda result: result.save("two.yaml"), results))
    text = (past / "two.yaml").read_text()
    assert text in {result.best_file().text("two.yaml") for result in results}
    assert not [*past.glob(".two*")]
