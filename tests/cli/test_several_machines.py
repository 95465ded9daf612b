"""Several machines that search one study, as users type it: join, serve, hand over, watch, show.

The machines are scripted and search in virtual time; the study lies in memory, and once behind the
proxy on loopback.
"""

import json
import re
import shlex
import socket
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest
from optuna.storages import InMemoryStorage
from typer.testing import CliRunner

import autotune
from autotune.cli import executors
from autotune.cli.app import app
from autotune.cli.executors import Executor, Submission, workers
from autotune.cli.shared_study import changes
from autotune.errors import OutOfReachError
from autotune.machine import host_lock
from autotune.measurement.interval import Interval
from autotune.program.config import Config
from autotune.program.sharing_options import SharingOptions
from autotune.results.finding import Finding
from autotune.results.shared_answer import GroupAnswer
from autotune.sharing import liveness, proxy
from autotune.sharing.address import Address
from autotune.sharing.standing import GroupStanding, Life, MemberStanding, Standing
from autotune.tuning import joining
from autotune.tuning.storage import search_dir
from tests.docs.project import scripted
from tests.scripted import Script

HOST = search_dir._host()
URL, PASSWORD = "postgresql://me@db/autotune", "s3cr3t"
BEAT_S = 0.05


@pytest.fixture(autouse=True)
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A scripted machine with a program in its folder."""
    monkeypatch.chdir(tmp_path)
    Path("train.py").write_text("print(1)\n")
    monkeypatch.setattr(liveness, "BEAT_S", BEAT_S)
    with scripted(Script({"workers": {1: 1.3, 2: 1.6}})):
        yield


@pytest.fixture
def storage(monkeypatch: pytest.MonkeyPatch) -> InMemoryStorage:
    """The storage at ``URL``, whose password is in the environment."""
    found = InMemoryStorage()

    def open_store(address: Address) -> InMemoryStorage:
        assert address.secrets["password"].reveal() == PASSWORD
        return found

    monkeypatch.setattr(joining, "open_store", open_store)
    monkeypatch.setenv("AUTOTUNE_STORAGE", URL.replace("@", f":{PASSWORD}@"))
    return found


def said(line: str, status: int = 0) -> str:
    done = CliRunner().invoke(app, shlex.split(line))
    assert done.exit_code == status, (done.output, done.exception)
    return done.output


class Nobody(Executor):
    """Starts members that end before they have joined."""

    name, usage = "nobody", "nobody"

    def submit(self, line: Sequence[str], count: int) -> Submission:
        del line
        return Submission(tuple(f"job {n}" for n in range(count)), "'qdel 1' ends them.")

    def unfinished(self) -> Collection[str]:
        return ()


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> str:
    """What is typed to create a study that nobody joins."""
    monkeypatch.setitem(executors.MEMBERS, "nobody", Nobody)
    return "search --workers 2 --executor nobody --name demo -- train.py"


def test_the_options_of_several_machines_are_a_panel_of_the_help() -> None:
    _, _, panel = said("search --help").partition("\nSeveral machines:\n")
    options = re.findall(r"^ +(--[a-z-]+) ", panel, re.MULTILINE)
    assert options == ["--storage", "--serve", "--workers", "--executor"]


def test_machines_join_a_study_and_nothing_that_is_written_or_printed_holds_the_password(
    storage: InMemoryStorage,
) -> None:
    told = said(f"search --storage {URL} --name demo --tune workers --budget 3m -- train.py")
    result = autotune.search("train.py", name="demo", tune=["workers"], budget="3m")
    assert result.head.options.sharing == SharingOptions(URL, "demo")
    names = {path.parent.name for path in Path(".autotune").glob("*/study.db")}
    assert names == {f"demo-{HOST}", f"demo-{HOST}-2"}, "each has a folder of its own"
    told += said(f"resume demo-{HOST} --budget 4m")
    told += (shown := said(f"show --storage {URL} --name demo"))
    told += (data := said("show --name demo --json"))
    told += said(f"show demo-{HOST} --html -o report.html") + said(f"show demo-{HOST} --md")
    told += said("export --to sbatch -o train.sbatch best.yaml")
    for file in ("best.yaml", "report.html", "train.sbatch"):
        assert Path(file).stat().st_size, file
    (study,) = storage.get_all_studies()
    assert len([name for name in study.user_attrs if name.startswith("member:")]) == 2
    written = [one.read_bytes() for one in Path().rglob("*") if one.is_file()]
    assert sum(b"me@db" in one for one in written) >= 2, "the record names the storage"
    for text in (told.encode(), str(study.user_attrs).encode(), *written):
        assert PASSWORD.encode() not in text

    assert shown.startswith("demo: train.py\n")
    assert len(re.findall(rf"\n{HOST} +left  ", shown)) == 2
    for row in ("rounds", "announced", "claim", "answer"):
        assert re.search(rf"\n{row}  ", shown), shown
    assert f"workers=2, by {HOST}" in shown
    found = json.loads(data)
    assert found["study"] == "demo"
    assert [one["life"] for one in found["members"]] == ["left", "left"]
    assert found["groups"][0]["announced"]["workers"] == 2
    assert found["groups"][0]["answer"]["config"]["workers"] == 2
    assert "There is no shared study 'other'" in said("show --name other", status=2)
    assert len(storage.get_all_studies()) == 1, "looking creates nothing"


def test_who_may_not_join_is_refused_in_one_line_before_anything_is_measured(
    storage: InMemoryStorage, nobody: str
) -> None:
    told = said(nobody, status=2)
    assert "No worker has joined the study 'demo'. What they printed says why: job 0, job 1" in told
    assert storage.get_study_id_from_name("demo") == 0, "the study is there before they start"
    line = "search --name demo -- train.py"
    told = said(f"{line} --lr 2", status=2)
    assert "the line is 'train.py' there, and 'train.py --lr 2' here" in told
    with host_lock.held(()):
        told += said(line, status=2)
    assert "has taken this machine" in told
    Path("train.py").write_text("print(2)\n")
    for typed in (line, nobody):  # nobody waits in a queue to be refused
        told += said(typed, status=2)
    assert told.count("the fingerprint of train.py is ") == 2
    assert len(told.splitlines()) == 4, told
    assert not [*Path(".autotune").glob("*/*")]


def test_what_does_not_name_a_study_is_refused_with_what_to_type(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for options, told in {
        f"--storage {URL} --serve 7000 --name x": "type one.",
        f"--storage {URL}": "add --name NAME, the same for all who search together",
        "--storage sqlite:///x.db --name x": "--storage cannot be a URL of 'sqlite'",
        f"--storage {URL.replace('@', ':pw@')} --name x": "AUTOTUNE_STORAGE",
        "--serve here --name x": "--serve takes HOST:PORT, or a port of this machine, not 'here'",
        "--serve 70000 --name x": "not '70000'",
        "--serve 7000 --name a/b": "cannot be the name of a search",
        "--workers 2 --serve 7000 --name x": "type both",
        "--workers 2 --executor local --serve 7000 --name x --dry-run": "leave out --workers",
        f"--workers 2 --executor 'slurm -c 2' --storage {URL} --name a/b": "the name of a search",
        "--executor local --serve 7000 --name x": "type both",
        "--workers 2 --executor local --name x": "add --storage URL or --serve HOST:PORT",
        f"--workers 2 --executor lsf --storage {URL} --name x": "There is no executor 'lsf'",
    }.items():
        assert told in said(f"search {options} -- train.py", status=2), options
    monkeypatch.setenv("AUTOTUNE_STORAGE", URL)
    assert "AUTOTUNE_STORAGE is set" in said("search train.py", status=2)
    assert "only --json goes with it" in said("show --name x --trials", status=2)
    monkeypatch.delenv("AUTOTUNE_STORAGE")
    assert "add --storage URL" in said("show --name x", status=2)
    assert not Path(".autotune").exists()


def test_a_search_serves_its_study_until_the_last_member_has_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    said(f"search --serve {port} --name demo --budget 60s -- train.py")
    assert (Path(".autotune") / f"demo-{HOST}" / "shared.db").is_file()
    monkeypatch.setattr(joining, "OPENING_S", 0.0)
    told = said(f"search --storage grpc://127.0.0.1:{port} --name demo -- train.py", status=2)
    assert "127.0.0.1" in told, "nobody serves it any more"


# --- handing over ---------------------------------------------------------------------------------


def test_the_line_that_is_handed_over_is_the_one_that_was_typed() -> None:
    sharing = SharingOptions("grpc://node1:7000", "x")
    for typed, line in {
        "--workers 2 --executor slurm --serve node1:7000 --name x -- train.py --workers 4":
        "--name x -- train.py --workers 4",
        "--name x --executor='slurm -c 2' --tune workers,threads --workers=2 train.py":
        "--name x --tune workers,threads train.py",
    }.items():  # fmt: skip
        words, program = shlex.split(typed), shlex.split(typed.partition("train.py")[2])
        found = workers.line_of(words, ["train.py", *program], sharing)
        assert shlex.join(found) == f"search --storage grpc://node1:7000 {line}"


SBATCH = """#!/bin/sh
tr '\\0' '\\n' < /proc/$$/cmdline > typed; cat > script; echo 41
"""


def test_jobs_are_handed_over_without_the_password_of_their_study(
    storage: InMemoryStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is in this command's environment, from which a job inherits it."""
    del storage
    for name, text in {"sbatch": SBATCH, "squeue": "#!/bin/sh\n"}.items():
        Path(name).write_text(text)
        Path(name).chmod(0o755)
    monkeypatch.setenv("PATH", str(Path.cwd()), prepend=":")
    told = said("search --workers 2 --executor 'slurm -c 2' --name demo -- train.py", status=2)
    script, typed = Path("script").read_text(), Path("typed").read_text()
    assert f"--storage {URL} --name demo" in script
    assert "--parsable" in typed
    for text in (told, script, typed):
        assert PASSWORD not in text


def test_a_manifest_is_printed_and_nothing_is_started() -> None:
    executor = "'kubernetes --image=me/train --cpus=8'"
    told = said(f"search --workers 3 --executor {executor} --name x -- train.py")
    assert "completions: 3" in told
    assert "--name" in told
    for options, mend in {
        "": "add --name NAME",
        "--name x --serve 7000": "leave out --storage and --serve",
        f"--name x --storage {URL}": "leave out --storage and --serve",
    }.items():
        line = f"search --workers 3 --executor {executor} {options} -- train.py"
        assert mend in said(line, status=2)
    assert not Path(".autotune").exists()


def test_who_stops_watching_is_told_how_to_go_on_and_how_to_end_the_workers(
    storage: InMemoryStorage, nobody: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    del storage

    def interrupted(*_: object) -> Standing:
        raise KeyboardInterrupt

    monkeypatch.setattr(workers, "watched", interrupted)
    told = said(nobody, status=130)
    assert "'qdel 1' ends them." in told
    assert f"autotune show --storage {URL} --name demo" in told


def test_a_study_that_other_machines_cannot_reach_is_warned_of(
    nobody: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joining, "open_store", lambda _: InMemoryStorage())
    monkeypatch.setattr(proxy, "serve", lambda *_: nullcontext())
    for host in ("", "localhost:", "0.0.0.0:", "[::1]:", "node1:"):
        told = said(nobody.replace("--name", f"--serve {host}7000 --name"), status=2)
        assert ("do not reach" in told) is (host != "node1:"), told


# --- watching -------------------------------------------------------------------------------------


def member(id_: str, life: Life = Life.LIVING, phase: str = "try settings") -> MemberStanding:
    return MemberStanding(id_, f"node-{id_}", life, phase, "8 cores", "g")


def study(*members: MemberStanding, claims: Mapping[str, int] | None = None) -> Standing:
    answer = GroupAnswer(
        "g", "8 cores", Finding.FASTER, Config({"workers": 2}), Interval(1.31, 1.28, 1.34), ("a",)
    )
    group = GroupStanding(
        group="g",
        machine="8 cores",
        hosts=("node-a",),
        as_written=Config({"workers": 0}),
        rounds=3,
        tried=0,
        hand_outs=(),
        announced=Config({"workers": 2}) if claims else None,
        announced_by="node-a",
        claims=claims or {},
        refusals=(),
        answer=answer if claims and len(claims) > 1 else None,
    )
    return Standing("train.py", members, (group,))


LOOKS = (
    study(member("a", Life.QUIET)),
    study(member("a"), member("b", phase="")),
    study(member("a", phase="confirm"), member("b"), claims={"node-a": 2}),
    study(
        member("a", Life.LEFT, "confirm"),
        member("b", Life.GONE),
        claims={"node-a": 2, "node-b": 1},
    ),
)
LINES = [
    "node-a has joined",
    "node-a: try settings",
    "node-b has joined",
    "node-a: confirm",
    "node-b: try settings",
    "announced: workers=2, by node-a (8 cores)",
    "claim: fresh processes: 2 on node-a (8 cores)",
    "node-a has left",
    "node-b is gone; what it had in hand goes to others",
    "claim: fresh processes: 2 on node-a, 1 on node-b (8 cores)",
    "answer: 1.31x with workers=2 (95 % between 1.28x and 1.34x); measured on a (8 cores)",
]


class Looking:
    """Shows one standing after the other; an error is raised."""

    def __init__(self, *shown: Standing | Exception) -> None:
        self._shown = iter(shown)

    def look(self) -> Standing:
        if isinstance(found := next(self._shown), Exception):
            raise found
        return found


def test_who_watches_reads_a_line_for_each_change_until_all_have_ended() -> None:
    told: list[str] = []
    away = OutOfReachError("db does not answer")
    looking = Looking(LOOKS[0], LOOKS[0], away, away, *LOOKS[1:])
    found = workers.watched(told.append, looking, lambda: None, wait=lambda _: None)  # type: ignore[arg-type]
    assert found is LOOKS[-1]
    cut = told.index("The study cannot be looked at now: db does not answer")
    assert told.pop(cut + 1) == "The study can be looked at again."
    told.pop(cut)
    assert told == LINES


def test_the_queue_knows_of_workers_that_wait_yet() -> None:
    jobs = iter([["job 1"], ["job 1"], []])
    shown = Looking(*[LOOKS[-1]] * 3)
    workers.watched(lambda _: None, shown, lambda: next(jobs), wait=lambda _: None)  # type: ignore[arg-type]
    assert not [*jobs], "until it has ended"
    assert not [*changes(LOOKS[-1], LOOKS[-1])]
