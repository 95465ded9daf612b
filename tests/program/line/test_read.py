"""Each form of a line: the program that it names, or the answer that the user reads."""

import os
import shutil
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.errors import UsageError
from autotune.program.line import Line, Shell, launchers, read, words_of
from autotune.program.line.ask_launcher import Answer, answer
from autotune.program.line.base import Known
from autotune.program.program import Program, ProgramKind

OUR_BIN = str(Path(sys.prefix, "bin"))
SCRIPT, MODULE = ProgramKind.SCRIPT, ProgramKind.MODULE
OURS = "autotune search --budget 90s --"
RESTARTS = "torchrun --max-restarts 3 --standalone train.py"  # what is left out of it is said


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A project: a script, a package with and without __main__, a shell script."""
    home = (tmp_path / "project").resolve()
    odd = ("tools/time", "lr=1/train.py", "bare/__init__.py", "bare/fit.py")
    package = ("pkg/__init__.py", "pkg/train.py", "pkg/__main__.py")
    for name in (*odd, *package, "train.py", "src/run.py"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(f"# {name}\n")
    return home


@pytest.fixture(autouse=True)
def _ask_in_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spare each line of torchrun a process: this one has imported torch."""

    def ask(launcher: str, words: Sequence[str], known: Known, shell: Shell) -> Answer:
        with monkeypatch.context() as patch:
            patch.delenv("OMP_NUM_THREADS", raising=False)
            for name, value in {**shell.variables, **known.env}.items():
                patch.setenv(name, value)
            patch.chdir(shell.cwd)
            return answer(launcher, words)

    monkeypatch.setattr(launchers, "ask", ask)


def shell_at(place: Path, **variables: str) -> Shell:
    path = f"{OUR_BIN}:/usr/bin:/bin"
    ours = os.environ.get("PYTHONPATH", "")  # where this very autotune may come from
    command = "autotune search --budget 90s"
    return Shell(place, {"PATH": path, "PYTHONPATH": ours, **variables}, command=command)


def line(place: Path, text: str, **variables: str) -> Line:
    return read(words_of(text), shell_at(place, **variables))


def program(place: Path, text: str, **variables: str) -> Program:
    return line(place, text, **variables).program


def refusal(place: Path, text: str, **variables: str) -> str:
    with pytest.raises(UsageError) as caught:
        line(place, text, **variables)
    return str(caught.value)


def test_lines_name_the_script_its_arguments_and_what_is_set_for_it(place: Path) -> None:
    torchrun = "--nproc-per-node 3 --rdzv-backend c10d --rdzv-endpoint localhost:0"
    two = {"ranks": 2, "python_options": ("-u",), "env": {"OMP_NUM_THREADS": "1"}}
    cases: dict[str, dict[str, object]] = {
        "train.py": {},
        "-- train.py --lr 1": {"args": ("--lr", "1")},
        "python3 -uOO -X dev train.py": {"python_options": ("-u", "-O", "-O", "-X", "dev")},
        "python -Werror -W ignore::UserWarning train.py": {
            "warning_filters": ("error", "ignore::UserWarning")
        },
        f"{sys.executable} -P train.py": {"import_root": ""},
        "-u train.py": {"python_options": ("-u",)},
        "A=1 B='x y' python train.py C=3": {"env": {"A": "1", "B": "x y"}, "args": ("C=3",)},
        "CUDA_VISIBLE_DEVICES=0 train.py": {"visible_devices": "0"},
        "tools/time x": {"path_typed": "tools/time", "args": ("x",)},
        "python lr=1/train.py": {"path_typed": "lr=1/train.py"},
        f"torchrun {torchrun} train.py --lr 1": {**two, "ranks": 3, "args": ("--lr", "1")},
        "torchrun --standalone --nproc_per=2 train.py": two,
        "python -i train.py": {},
        RESTARTS: {"ranks": 1, "python_options": ("-u",)},
        "python -m torch.distributed.run --nproc-per-node=2 train.py": two,
        "torchrun --nproc-per-node 2 --no-python python -O train.py": {
            **two, "python_options": ("-O",),
        },
        "OMP_NUM_THREADS=4 torchrun --nproc-per-node 2 train.py": {
            **two, "env": {"OMP_NUM_THREADS": "4"},
        },
    }  # fmt: skip
    for text, wanted in cases.items():
        found = program(place, text)
        path = str(wanted.get("path_typed", "train.py"))
        assert (found.kind, found.source) == (SCRIPT, str(place / path)), text
        assert bool(line(place, text).notes) is (text in {"python -i train.py", RESTARTS}), text
        whole = {"path_typed": path, "args": (), "ranks": None, "python_options": (), **wanted}
        whole = {"import_root": str((place / path).parent), **whole}
        assert {name: getattr(found, name) for name in whole} == whole, text


def test_the_line_that_messages_show_names_the_same_program(place: Path) -> None:
    for text in (
        "train.py --lr 1",
        "python -u train.py '--name=a b'",
        "A=1 torchrun --nproc-per-node 2 train.py x",
        "-m pkg.train x",
        "python -m pkg",
        "-- -u -W error train.py",
        "src/run.py:fit",
        "pkg.train:fit x",
        "python tools/time x",
        "python lr=1/train.py x",
    ):
        found = program(place, text)
        assert str(found) == text
        assert program(place, str(found)) == found
        changed = replace(found, args=(*found.args, "--new"))
        assert str(changed) == f"{text} --new", "--set changes what the program reads"
        again = read(found.words, shell_at(place)).program
        whole = replace(again, command=found.command, env=found.env, ranks=found.ranks)
        assert replace(whole, python_options=found.python_options) == found, text


def test_modules_are_found_and_named_and_their_file_is_what_counts(place: Path) -> None:
    cases = {
        "python -m pkg.train x": ("pkg.train", "pkg/train.py", "train", None),
        "python -um pkg x": ("pkg", "pkg/__main__.py", "pkg", None),
        "torchrun --nproc-per-node 2 -m pkg.train x": ("pkg.train", "pkg/train.py", "train", 2),
        "PYTHONPATH=src python -m run x": ("run", "src/run.py", "run", None),
    }
    for text, (target, source, name, ranks) in cases.items():
        found = program(place, text)
        assert (found.kind, found.target, found.name) == (MODULE, target, name), text
        assert (found.source, found.ranks) == (str(place / source), ranks), text
        assert (found.args, found.import_root) == (("x",), str(place)), text
    before = program(place, "python -m pkg.train").fingerprint
    (place / "pkg" / "train.py").write_text("# changed\n")
    assert program(place, "python -m pkg.train").fingerprint != before


def test_a_console_script_counts_by_the_file_of_its_entry_point(place: Path) -> None:
    found = program(place, "pytest -x tests")  # one that is here in any case
    assert (found.kind, found.name, found.args) == (SCRIPT, "pytest", ("-x", "tests"))
    assert found.path_typed == f"{OUR_BIN}/pytest", "what the kernel hands to the interpreter"
    assert found.source.endswith("/_pytest/config/__init__.py")
    assert program(place, f"{OUR_BIN}/pytest -x").source == found.source
    assert program(place, "pytest", PATH="/usr/bin").source == found.source, "not on PATH, but ours"


def test_lines_of_other_launchers_are_answered_with_what_to_type(place: Path) -> None:
    torchrun = f"{OURS} torchrun --nproc-per-node N train.py"
    cases = {
        "uv run train.py --lr 1": f"uv run {OURS} train.py --lr 1",
        "uv run --with rich python -u train.py": f"uv run --with rich {OURS} python -u train.py",
        "uv run -m pkg.train": f"uv run {OURS} -m pkg.train",
        "conda run -n env python train.py": f"conda run -n env {OURS} python train.py",
        "timeout -k 5 90m python train.py": f"timeout -k 5 90m {OURS} python train.py",
        "env -u A python train.py": f"env -u A {OURS} python train.py",
        "python -m cProfile -o x train.py": f"{OURS} python train.py",
        "bash -c 'python train.py x'": f"{OURS} python train.py x",
        "mpirun -n 2 python train.py": torchrun,
        "deepspeed --num_gpus 2 train.py": torchrun,
        "python -m torch.distributed.launch --use_env --nproc_per_node 2 train.py": (
            f"{OURS} torchrun --nproc_per_node 2 train.py"
        ),
        "srun -n 2 --gres=gpu:2 python train.py": (
            "srun -n 2 --gres=gpu:2 --cpus-per-task=N --ntasks 1 autotune search --budget 90s -- "
            "python train.py"
        ),
        "srun -c 4 python train.py": f"srun -c 4 --ntasks 1 {OURS} python train.py",
    }
    for text, mend in cases.items():
        assert f"\n  {mend}" in f"{refusal(place, text)}\n", text


def test_a_dropped_srun_is_told_how_many_cores_it_would_have_given(place: Path) -> None:
    job = {"SLURM_JOB_CPUS_PER_NODE": "16(x2),8"}
    said = refusal(place, "srun python train.py", **job)
    assert "srun gives each task 1 core of the 16 that this job has" in said
    assert f"\n  srun --cpus-per-task=16 --ntasks 1 {OURS} python train.py" in said
    for cores in ("-c 4", "-c4", "--cpus-per-task=4", "--cpus-per-task 4"):
        said = refusal(place, f"srun {cores} python train.py", **job)
        assert f"\n  srun {cores} --ntasks 1 {OURS} python train.py" in said
        assert "gives each task 1 core" not in said


def test_lines_that_cannot_be_started_say_what_is_wrong_and_the_mend(place: Path) -> None:
    cases = {
        "trian.py": "There is no program 'trian.py'. Did you mean 'train.py'?",
        "python": "names a program",
        "python -c 'import this'": "Save the code as a file",
        "python --bogus train.py": "--bogus stands before the program",
        "python -m": "-m needs a value",
        "python -m pgk.train": "Did you mean 'pkg'?",
        "python -m bare": "Name a module of it: -m bare.MODULE",
        "A=1": "names no program",
        "torchrun": "torchrun: the following arguments are required: training_script",
        "torchrun --nnodes 2 train.py": "autotune run --nnodes N best.yaml",
        "torchrun --nproc-per-node many train.py": "Give a number of ranks",
        "accelerate config": "accelerate launch train.py",
        "bash missing.sh": "There is no script 'missing.sh'",
        "ls -l": "not a Python program",
    }
    for text, said in cases.items():
        assert said in refusal(place, text), text
    with pytest.raises(UsageError, match="Say it once"):
        read(["torchrun", "--nproc-per-node", "2", "train.py"], shell_at(place), ranks=3)
    assert read(["train.py"], shell_at(place), ranks=3).program.ranks == 3
    with pytest.raises(UsageError, match=r"needs a shell for \|"):
        words_of("python train.py | tee log")


def test_another_environment_is_told_a_mend(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = place / "other" / "bin" / "python"
    other.parent.mkdir(parents=True)
    monkeypatch.setattr("autotune.program.line.python.ASK_S", 0.1)
    for script in ("echo /other", "exit 1", "sleep 60"):
        other.write_text(f"#!/bin/sh\n{script}\n")
        other.chmod(0o755)
        said = refusal(place, "A=1 python -u train.py", PATH=f"{other.parent}:/usr/bin:/bin")
        assert f"'python' is {other}, and autotune runs in another environment" in said
        assert f"\n  {other} -m pip install .\n" in said
        assert f"\n  A=1 {other} -m autotune search --budget 90s -- python -u train.py" in said
    monkeypatch.setattr("autotune.program.line.python.ASK_S", 5.0)
    # What the interpreter leaves, as a sitecustomize may start it, holds what that prints to
    other.write_text(f'#!/bin/sh\nsleep 6 &\nexec {sys.executable} "$@"\n')
    assert program(place, f"{other} train.py").kind is SCRIPT, "a shim may lead to our own"


def test_a_shell_script_is_answered_with_its_lines_that_may_train(place: Path) -> None:
    (place / "train.sh").write_text(
        "#!/bin/bash\npip install -r x.txt\n# python old.py\n"
        'cd x && torchrun --nproc_per_node=2 \\\n  train.py --lr $LR "$@"\n'
    )
    for text in ("bash train.sh --x 1", "./train.sh --x 1", "sbatch --nodes=1 train.sh"):
        said = refusal(place, text)
        assert f"write '{OURS}' before the command" in said, text
        assert "\n    4: cd x && torchrun --nproc_per_node=2 \\" in said
        assert "pip" not in said
        assert "old.py" not in said


@pytest.mark.skipif(not shutil.which("accelerate", path=OUR_BIN), reason="accelerate is missing")
def test_launchers_are_asked_in_a_process(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    (place / "config.yaml").write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nnum_processes: 2\n"
        "num_machines: 1\nmixed_precision: bf16\ngpu_ids: all\nuse_cpu: false\n"
        "machine_rank: 0\nmain_training_function: main\nsame_network: true\n"
    )
    found = program(place, "accelerate-launch --config_file config.yaml -m pkg.train --x 1")
    assert (found.kind, found.target, found.args) == (MODULE, "pkg.train", ("--x", "1"))
    assert found.ranks == 2
    assert found.env["ACCELERATE_MIXED_PRECISION"] == "bf16"
    assert "accelerate" in refusal(place, "accelerate launch --bogus train.py")
