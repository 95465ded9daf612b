"""best.yaml: what was written is read back, hand edits are taken or answered with file and line."""

import gzip
import json
import os
import re
import sqlite3
from dataclasses import fields, replace
from pathlib import Path

import pytest

from autotune.errors import FileFormatError, RunDirectoryError, UsageError
from autotune.measurement.interval import Interval
from autotune.program.applied_config import ALWAYS_NEEDED, FACTS_NEEDED, ProgramTraits
from autotune.program.config import Config
from autotune.program.flags import Flag
from autotune.program.lr import LrRule, batch_growth
from autotune.program.profile import OptimizerFacts
from autotune.program.sources import digest_of
from autotune.results import bestfile
from autotune.results.bestfile import BestFile
from autotune.results.output import Output
from autotune.results.record import FORMAT
from autotune.results.searched_program import imports_of
from autotune.tuning.storage.search_dir import FILE, SearchDir
from tests.made import (
    A100,
    BASELINE,
    CHANGES,
    HARDWARE,
    LOADER,
    PROGRAM,
    make_applied,
    make_best,
    make_hardware,
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / 'it\'s a "place"' / "best.yaml"
    path.parent.mkdir()
    path.write_text(make_best().text(), encoding="utf-8")
    return path


def edit(path: Path, old: str, new: str, count: int = 1) -> None:
    """Edit the file as a person would: *old* must be there."""
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, count), encoding="utf-8")


def line_of(path: Path, text: str) -> int:
    """Return the number of the first line that holds *text*, below the comment."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return next(n for n, line in enumerate(lines, 1) if text in line and not line.startswith("#"))


def faults_of(path: Path) -> list[str]:
    with pytest.raises(FileFormatError) as refusal:
        bestfile.read(path)
    return [line.removeprefix(f"{path}:") for line in str(refusal.value).splitlines()]


def test_what_was_written_is_read_back_with_its_types_and_says_how_to_train(path: Path) -> None:
    written, best = make_best(), bestfile.read(path)
    assert best == written
    assert type(best.config["workers"]) is int
    applied = best.applied
    assert applied.changes() == best.config == CHANGES
    assert applied.baseline == Config({k: BASELINE[k] for k in (*CHANGES, "batch_size")})
    assert applied.traits.loader == LOADER
    first = path.read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith("# ")
    assert "autotune run best.yaml train.py --epochs 3" in first
    text = make_best(confirmed=False).text("candidate.yaml")
    assert "Not confirmed. Try it:  autotune run candidate.yaml train.py" in text
    path.write_text(text)
    (doubt,) = bestfile.read(path).warnings(make_hardware(gpus=(A100,)), None)
    assert "not confirmed" in doubt
    assert "It changes nothing:" in make_best(config=BASELINE).text()


MANY = {
    "workers": (0, 2), "threads": (2, 1), "precision": ("fp32", "bf16"),
    "optimizer": ("for-loop", "fused"), "cudnn": ("default", "benchmark"), "batch_size": (64, 64),
}  # fmt: skip


def test_a_file_has_a_dozen_lines_and_holds_what_its_settings_need_alone() -> None:
    def made(*settings: str) -> bestfile.BestFile:
        traits = ProgramTraits(
            "cpu",
            LOADER,
            program_autocast=True,
            optimizers=(OptimizerFacts("SGD", ("SGD",), (0.1,)),),
            mmap_threshold=1 << 25,
            flags={"--hidden": Flag("--hidden")},
        )
        return make_best(
            baseline={name: own for name, (own, _) in MANY.items()},
            config={name: pair[name in settings] for name, pair in MANY.items()},
            traits=traits,
        )

    typical = made("workers", "threads", "precision", "optimizer")
    assert 12 <= len(typical.text().splitlines()) <= 16, typical.text()
    assert {*typical.as_written} == {*typical.config, "batch_size"}
    assert typical.facts == ProgramTraits("cpu", LOADER, program_autocast=True)
    assert made("threads", "optimizer").facts == ProgramTraits("cpu")
    every = {f.name for f in fields(ProgramTraits)}
    assert {*ALWAYS_NEEDED}.union(*FACTS_NEEDED.values()) == every


def test_a_file_that_ranks_or_rates_depend_on_holds_what_these_are_told_by() -> None:
    baseline = {**BASELINE, "threads": 2, "devices": "single", "accumulation_steps": 1}
    told = {"batch_size", "devices", "accumulation_steps", "threads"}
    for change in ({"batch_size": 128}, {"devices": "ddp-2"}, {"accumulation_steps": 2}):
        best = make_best(baseline=baseline, config={**baseline, **change})
        assert {*best.as_written} == told, change
        assert (best.facts.loader, best.lr_rule) == (LOADER, LrRule.LINEAR)
        growth = batch_growth(best.applied.baseline, best.applied.config)
        assert growth == 2.0
        assert best.lr_factor == 1.0, "no optimizer is known"


def test_a_larger_batch_is_a_second_config_that_is_read_and_taken(path: Path) -> None:
    larger = bestfile.LargerBatch(config={"batch_size": 256}, speedup=Interval(2.0, 1.9, 2.1))
    best = BestFile.of(
        make_applied({"batch_size": 64}), PROGRAM, larger_batch=larger,
        speedup=larger.speedup, made_on=make_best().made_on, search=make_best().search,
    )  # fmt: skip
    path.write_text(best.text())
    taken = bestfile.read(path).with_larger_batch()
    assert bestfile.read(path) == best
    assert taken.applied.changes() == {"batch_size": 256}
    assert taken.facts.loader == LOADER
    with pytest.raises(UsageError, match="no config with a larger batch"):
        taken.with_larger_batch()


def test_a_larger_batch_that_a_new_search_replaces_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    larger = bestfile.LargerBatch(config={"batch_size": 256}, speedup=Interval(2.0, 1.9, 2.1))
    alone = make_best(config=BASELINE).model_copy(update={"larger_batch": larger})
    Path("best.yaml").write_text(alone.text())
    said = Output.typed(None).take(make_best(), PROGRAM, Path("own.yaml"))
    assert said.endswith("that it held is kept as best.yaml.1."), said
    assert bestfile.read(Path("best.yaml.1"), larger_batch=True).config == larger.config


def test_what_a_person_edits_counts(path: Path) -> None:
    edit(path, "  workers: 2\n", "  # two are too many\n  flush_denormal: yes\n")
    edit(path, "  precision: bf16\n", "  compile: off\n  workers: 1  # here\n")
    edit(path, "'2025-01-01T12:00:00+00:00'", "2025-01-01")  # which YAML reads as a date
    best = bestfile.read(path)
    assert best.search.date == "2025-01-01"
    changes = best.applied.changes()
    assert (changes["workers"], changes["flush_denormal"]) == (1, True)
    assert "precision" not in changes


GPU_BOX = replace(HARDWARE, cpu_name="AMD EPYC 7763", cpu_quota=8, gpus=(A100,))
OLD_BOX = replace(HARDWARE, cpu_name="Intel Xeon")
STRANGER = replace(HARDWARE, cpu_name="ARM Neoverse-N1")


def shared() -> BestFile:
    """Return the file of a search that two machines of one kind shared with two other kinds."""
    applied = make_applied({"threads": 1, "workers": 2, "batch_size": 64})
    applied = replace(applied, baseline=Config({"threads": 2, "workers": 0, "batch_size": 64}))
    groups = {
        GPU_BOX.fingerprint: bestfile.GroupSection(
            machine=GPU_BOX.named,
            config={"threads": 2, "precision": "bf16"},
            speedup=Interval(1.9, 1.8, 2.0),
            machines=("gpu01", "gpu02"),
        ),
        OLD_BOX.fingerprint: bestfile.GroupSection(machine=OLD_BOX.named),
    }
    return BestFile.of(
        applied, PROGRAM, speedup=Interval(1.31, 1.22, 1.4), machines=("a", "b"), groups=groups,
        made_on=bestfile.MadeOn.on(HARDWARE), search=make_best().search,
    )  # fmt: skip


def test_a_file_of_one_machine_is_of_the_version_that_earlier_readers_know(path: Path) -> None:
    alone = make_best().text()
    assert "\nversion: 3\n" in alone
    assert not re.search("^(machines|groups):", alone, re.MULTILINE)
    assert "\nversion: 4\n" in shared().text()
    path.write_text(shared().text())
    assert bestfile.read(path) == shared()
    lines = path.read_text().splitlines()
    assert "machines: [a, b]" in lines
    assert len(lines) <= 20, "one line for each other kind, or two"
    edit(path, "threads: 2, precision", "thread: 2, precision")
    (fault,) = faults_of(path)
    assert fault.startswith(f"{line_of(path, 'thread: 2')}: Unknown setting 'thread'."), fault


def test_a_machine_takes_what_its_own_kind_found(path: Path) -> None:
    path.write_text(shared().text())
    best = bestfile.read(path)
    like_it = replace(GPU_BOX, gpus=(A100, A100), versions={"torch": "2.12.0"})
    newer = replace(HARDWARE, versions={**HARDWARE.versions, "torch": "9.0"})
    for machine, changes, said in (
        (HARDWARE, {"threads": 1, "workers": 2}, "(1.31x)"),
        (GPU_BOX, {"threads": 2, "precision": "bf16"}, "(1.90x)"),
        (like_it, {"threads": 2, "precision": "bf16"}, "8 cores', which this one looks like, are"),
        (newer, {"threads": 1, "workers": 2}, "2 cores', which this one looks like, are used"),
        (OLD_BOX, {}, "(nothing is faster there)"),
        (STRANGER, {"threads": 1, "workers": 2}, "and this is none of them. Those for"),
    ):
        taken, sentence = best.on(machine)
        assert taken.applied.changes() == changes, machine
        assert sentence.startswith("It holds settings for 3 kinds of machine"), sentence
        assert said in sentence, sentence
        doubts = taken.warnings(machine, None)
        assert bool(doubts) is (machine in (STRANGER, newer)), doubts
        chosen = best.of_group(best.group_on(machine))
        assert chosen.applied == taken.applied, "as the training reads it"
    assert make_best().on(STRANGER) == (make_best(), ""), "where one kind is held, none is refused"


OLDER = "this file has version 1, but this autotune reads versions 3 and 4."
TAKES = "setting 'precision' takes fp32 or tf32 or medium or bf16 or fp16, not"


@pytest.mark.parametrize(
    ("old", "new", "fault"),
    [
        (
            "  workers: 2\n",
            "  num_worker: 2\n",
            "Unknown setting 'num_worker'. Did you mean 'workers'?",
        ),
        ("  precision: bf16", "  precision: fp8", f"{TAKES} 'fp8'."),
        ("speedup: {", "speed_up: {", "Unknown key 'speed_up'. Did you mean 'speedup'?"),
        ("{estimate:", "{estimat:", "Unknown key 'speedup.estimat'. Did you mean 'estimate'?"),
        ("made_on:", "mad_on:", "Unknown key 'mad_on'. Did you mean 'made_on'?"),
        ("estimate: 1.42", "estimate: fast", "'speedup.estimate': "),
        ("cores: 2", "cores: two", "'made_on.cores': "),
        ("version: 3\n", "version: 5\n", "this file has version 5, but this autotune reads"),
        ("version: 3\n", "version: 1\n", f"{OLDER} An older autotune wrote it: search again."),
        *(
            ("  workers: 2\n", f"  {part}: 2\n", f"The search did not change '{part}', so the file")
            for part in ("accumulation_steps", "batch_size")
        ),
    ],
)
def test_a_fault_is_told_with_line_and_mend(path: Path, old: str, new: str, fault: str) -> None:
    edit(path, old, new)
    line = line_of(path, new.strip())
    assert any(one.startswith(f"{line}: {fault}") for one in faults_of(path)), faults_of(path)


def test_a_loader_setting_is_refused_where_the_file_does_not_know_the_loader(path: Path) -> None:
    baseline = {"threads": 2, "batch_size": 64}
    best = make_best(baseline=baseline, config={"threads": 1, "batch_size": 64})
    path.write_text(best.text())
    edit(path, "  threads: 1\n", "  threads: 1\n  workers: 2\n  batch_size: 128\n")
    for fault, name in zip(faults_of(path), ("workers", "batch_size"), strict=True):
        assert f"did not change '{name}'" in fault
        assert f"--set {name}=" in fault


def test_what_is_missing_is_named_and_all_faults_are_told_at_once(path: Path) -> None:
    edit(path, "program: train.py --epochs 3\n", "")
    edit(path, "  workers: 2\n", "  num_worker: 2\n")
    text = path.read_text(encoding="utf-8")
    text = re.sub(r"^as_written: .*\n", "as_written: none\n", text, flags=re.MULTILINE)
    path.write_text(re.sub(r"^speedup: .*\n", "", text, flags=re.MULTILINE))
    faults = faults_of(path)
    assert len(faults) == 4
    assert "num_worker" in faults[0]
    assert any(fault.endswith("'program' is missing.") for fault in faults)
    assert any(fault.endswith("'speedup' is missing.") for fault in faults)


def test_another_machine_another_torch_and_a_changed_program_are_doubts(path: Path) -> None:
    best = bestfile.read(path)
    same = replace(PROGRAM, fingerprint="f" * 64)
    assert best.warnings(make_hardware(gpus=(A100,), shm_bytes=5), same) == []
    here = make_hardware(cpu_quota=8, versions={"python": "3.11.7", "torch": "2.12.0"})
    changed = replace(PROGRAM, source="/elsewhere/train.py", fingerprint="0" * 64)
    warnings = best.warnings(here, changed)
    assert len(warnings) == 4
    assert warnings[0].startswith("cores: 2 during the search, 8 now.")
    assert warnings[1].startswith("GPUs: NVIDIA A100-SXM4-40GB during the search, none now.")
    assert warnings[2].startswith("torch: 2.11.0 during the search, 2.12.0 now.")
    assert "The program has changed since the search (train.py --epochs 3)." in warnings[3]
    assert all("earch again" in warning for warning in warnings)


def test_an_edit_of_what_the_program_imports_is_named_where_the_search_is_there(
    path: Path, tmp_path: Path
) -> None:
    for name in ("model.py", "data.py", "gone.py"):
        (tmp_path / name).write_text("")
    program = replace(PROGRAM, cwd=str(tmp_path), source=str(tmp_path / "train.py"))
    seen = {str(tmp_path / name): digest_of(tmp_path / name) for name in ("model.py", "gone.py")}
    best = bestfile.read(path)
    imports = imports_of(program, {program.source: "f" * 64, **seen})
    evidence = tmp_path / best.search.folder / bestfile.RESULT
    evidence.parent.mkdir(parents=True)
    found = {"date": best.search.date, "program": {"imports": {**imports, "../pipe": "0"}}}
    evidence.write_text(json.dumps(found))
    os.mkfifo(tmp_path.parent / "pipe")
    (tmp_path / "gone.py").unlink()
    here = make_hardware(gpus=(A100,), shm_bytes=5)
    assert best.warnings(here, program) == []
    (tmp_path / "model.py").write_text("LAYERS = 3")
    (warning,) = best.warnings(here, program)
    assert "(train.py --epochs 3). Of what it imports: model.py. Search again" in warning
    near = replace(program, cwd="/elsewhere")
    assert best.warnings(here, near) == []
    for other in ("[1]", "no json", json.dumps({**found, "date": "2024"}), "{}"):
        evidence.write_text(other)  # of another search, or somebody else's
        assert best.warnings(here, program) == [], other
    checkout = {f"/checkout/{n}/\udce9{n}.py": "f" * 64 for n in range(9000)}
    imports = imports_of(program, {**checkout, **seen})
    assert {"model.py", "gone.py"} < {*imports}, "the nearest ones"


def test_another_program_is_not_taken_for_a_changed_one(path: Path) -> None:
    best = bestfile.read(path)
    here = make_hardware(gpus=(A100,), shm_bytes=5)
    other = replace(PROGRAM, source="/there/eval.py", fingerprint="0" * 64)
    (warning,) = best.warnings(here, other)
    assert warning.startswith("eval.py is another program than the one that was searched")
    for command in (
        "torchrun -m pkg.train conf.py",
        "'/a b/eval.py':main",
        "python -u eval.py train.py",
        "eval --fast",
    ):
        same = best.model_copy(update={"program": command})
        (told,) = same.warnings(here, other)
        assert "The program has changed" in told, command
    spaced = replace(other, source="/there/my train.py")
    own = best.model_copy(update={"program": "'my train.py' --fast"})
    assert "The program has changed" in own.warnings(here, spaced)[0]


@pytest.mark.parametrize(
    ("command", "is_same"),
    [
        ("A=1 torchrun --nproc-per-node 2 ./train.py --epochs 9", True),
        ("/home/user/train.py", True),
        ("examples/train.py --epochs 3", False),
        ("train.py:main --epochs 3", False),
        ("python -m train --epochs 3", False),
        ("python -m torch.distributed.run train.py", False),  # another start, and other code
        (".autotune/train-2/program.pkl:train", False),
    ],
)
def test_a_program_is_known_by_its_file_and_function(
    path: Path, command: str, *, is_same: bool
) -> None:
    changed = replace(PROGRAM, fingerprint="0" * 64)
    searched = bestfile.read(path).model_copy(update={"program": command}).searched
    assert searched.is_same(changed) is is_same
    assert searched.is_same(PROGRAM), "the same code"
    launched = replace(changed, command=("python", "-m", "torch.distributed.run", "eval.py"))
    assert not searched.is_same(launched)
    pickled = replace(changed, target="/home/user/.autotune/it/program.pkl", function="train")
    assert searched.is_same(pickled) is command.endswith("pkl:train")


# Of commit 0622edb (November 2026): two minutes of karpathy's makemore.py on two cores
RECORDED = Path(__file__).parent / "recorded"


def test_a_search_of_an_earlier_version_is_refused_with_what_to_do(tmp_path: Path) -> None:
    script = gzip.decompress((RECORDED / "study-0622edb.sql.gz").read_bytes()).decode()
    connection = sqlite3.connect(tmp_path / FILE)
    connection.executescript(script)
    connection.close()
    with pytest.raises(RunDirectoryError, match=rf"format 3, .* reads {FORMAT}\. Start a new"):
        SearchDir(tmp_path).load_study()
