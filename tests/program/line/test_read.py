"""Each form of a line: the program that it names, or the answer that the user reads."""

from __future__ import annotations

import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.errors import UsageError
from autotune.inside.code import frames
from autotune.program.line import Line, Shell, read, words_of
from autotune.program.line.ask_accelerate import Answer
from autotune.program.line.shell_script import candidates
from autotune.program.program import Program, ProgramKind
from autotune.rig.local_ranks import environment_of

OUR_BIN = str(Path(sys.prefix, "bin"))
SCRIPT, MODULE = ProgramKind.SCRIPT, ProgramKind.MODULE


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A project: a script, a package with and without __main__, a shell script."""
    home = (tmp_path / "project").resolve()
    odd = ("tools/time", "lr=1/train.py")
    for name in (
        *odd,
        "train.py",
        "src/run.py",
        "pkg/__init__.py",
        "pkg/train.py",
        "pkg/__main__.py",
    ):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text(f"# {name}\n")
    (home / "bare").mkdir()
    (home / "bare" / "__init__.py").touch()
    (home / "bare" / "fit.py").touch()
    return home


def shell_at(place: Path, **variables: str) -> Shell:
    """Return a shell in which our own environment is active."""
    path = f"{OUR_BIN}:/usr/bin:/bin"
    command = "autotune search --budget 90s"
    ours = os.environ.get("PYTHONPATH", "")  # where this very autotune may come from
    return Shell(place, {"PATH": path, "PYTHONPATH": ours, **variables}, command=command)


def line(place: Path, text: str, **variables: str) -> Line:
    """Read a line."""
    return read(words_of(text), shell_at(place, **variables))


def program(place: Path, text: str, **variables: str) -> Program:
    """Return the program of a line."""
    return line(place, text, **variables).program


def refusal(place: Path, text: str, **variables: str) -> str:
    """Return what a line that cannot be started is answered with."""
    with pytest.raises(UsageError) as caught:
        line(place, text, **variables)
    return str(caught.value)


def test_lines_name_the_script_its_arguments_and_what_is_set_for_it(place: Path) -> None:
    torchrun = "--nproc-per-node 3 --rdzv-backend c10d --rdzv-endpoint localhost:0"
    cases: dict[str, dict[str, object]] = {
        "train.py": {},
        "-- train.py --lr 1": {"args": ("--lr", "1")},
        "python train.py -u --lr 1": {"args": ("-u", "--lr", "1")},
        "python3 -uOO -X dev train.py": {"python_options": ("-u", "-O", "-O", "-X", "dev")},
        "python -Werror -W ignore::UserWarning train.py": {
            "warning_filters": ("error", "ignore::UserWarning")
        },
        f"{sys.executable} -P train.py": {"import_root": ""},
        "-u train.py": {"python_options": ("-u",)},
        "A=1 B='x y' python train.py C=3": {"env": {"A": "1", "B": "x y"}, "args": ("C=3",)},
        "env A=1 env B= python train.py": {"env": {"A": "1", "B": ""}},
        "CUDA_VISIBLE_DEVICES=0 train.py": {"visible_devices": "0"},
        "nohup nice -n 5 time python train.py": {},
        "tools/time x": {"path_typed": "tools/time", "args": ("x",)},
        "python lr=1/train.py": {"path_typed": "lr=1/train.py"},
        "lr=1/train.py": {"path_typed": "lr=1/train.py"},
        "timeout -k 5 90m stdbuf -oL python train.py x": {"args": ("x",)},
        f"torchrun {torchrun} train.py --lr 1": {
            "ranks": 3, "args": ("--lr", "1"), "python_options": ("-u",),
            "env": {"OMP_NUM_THREADS": "1"},
        },
        "torchrun --standalone --nproc_per=2 train.py": {"ranks": 2},
        "torchrun train.py": {"ranks": 1, "env": {}},
        "python -m torch.distributed.run --nproc-per-node=2 train.py": {"ranks": 2},
        "python -m torch.distributed.launch --use_env --nproc_per_node=2 train.py": {"ranks": 2},
        "torchrun --nproc-per-node 2 --no-python python -O train.py": {
            "ranks": 2, "python_options": ("-O",),
        },
        "OMP_NUM_THREADS=4 torchrun --nproc-per-node 2 train.py": {"env": {"OMP_NUM_THREADS": "4"}},
    }  # fmt: skip
    for text, wanted in cases.items():
        found = program(place, text)
        path = str(wanted.get("path_typed", "train.py"))
        assert (found.kind, found.source) == (SCRIPT, str(place / path)), text
        assert found.path_typed == path, text
        root = str((place / path).parent)
        everything = {"args": (), "ranks": None, "import_root": root, **wanted}
        seen = {name: getattr(found, name) for name in everything}
        if "torch" in text and "ranks" not in wanted:
            everything["ranks"] = 2
        assert seen == everything, text


def test_what_messages_show_is_the_line_that_was_typed_and_it_reads_as_the_same(
    place: Path,
) -> None:
    for text in (
        "train.py --lr 1",
        "python -u train.py '--name=a b'",
        "A=1 torchrun --nproc-per-node 2 train.py x",
        "-m pkg.train x",
        "nohup python -m pkg",
        "-- -u train.py",
        "src/run.py",
    ):
        found = program(place, text)
        assert str(found) == text
        assert program(place, str(found)) == found
        changed = replace(found, args=(*found.args, "--new"))
        assert str(changed) == f"{text} --new", "--arg changes what the program reads"


def test_a_process_of_ours_reads_the_same_program_from_its_words(place: Path) -> None:
    for text in (
        "train.py --lr 1",
        "python -u -W error train.py x",
        "python -P -m json.tool x",
        "A=1 torchrun --nproc-per-node 2 -m pkg x",
        "src/run.py:fit",
        "pkg.train:fit x",
        "python tools/time x",
        "python lr=1/train.py x",
    ):
        found = program(place, text)
        again = read(found.words, shell_at(place)).program
        whole = replace(again, command=found.command, env=found.env, ranks=found.ranks)
        assert replace(whole, python_options=found.python_options) == found, text


def test_modules_are_found_and_named_and_their_file_is_what_counts(place: Path) -> None:
    cases = {
        "python -m pkg.train x": ("pkg.train", "pkg/train.py", "train", None),
        "-m pkg.train x": ("pkg.train", "pkg/train.py", "train", None),
        "python -um pkg x": ("pkg", "pkg/__main__.py", "pkg", None),
        "torchrun --nproc-per-node 2 -m pkg.train x": ("pkg.train", "pkg/train.py", "train", 2),
        "torchrun --nproc-per-node 2 --module pkg x": ("pkg", "pkg/__main__.py", "pkg", 2),
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


def test_functions_are_still_named_by_file_or_module(place: Path) -> None:
    in_file = program(place, "src/run.py:fit 3")
    assert (in_file.kind, in_file.function) == (ProgramKind.FILE_FUNCTION, "fit")
    in_module = program(place, "A=1 pkg.train:fit")
    assert (in_module.kind, in_module.env) == (ProgramKind.MODULE_FUNCTION, {"A": "1"})


def test_a_console_script_of_our_environment_counts_by_the_file_of_its_entry_point(
    place: Path,
) -> None:
    found = program(place, "pytest -x tests")  # one that is here in any case
    assert (found.kind, found.name, found.args) == (SCRIPT, "pytest", ("-x", "tests"))
    assert found.path_typed == f"{OUR_BIN}/pytest", "what the kernel hands to the interpreter"
    assert found.source.endswith("/_pytest/config/__init__.py")
    assert program(place, f"{OUR_BIN}/pytest -x").source == found.source
    assert program(place, "pytest", PATH="/usr/bin").source == found.source, "not on PATH, but ours"


def test_what_is_left_out_of_a_line_is_said(place: Path) -> None:
    notes = line(place, "nohup nice python -i train.py").notes
    assert [note.partition(" is left out")[0] for note in notes] == ["nohup", "nice", "python -i"]
    assert line(place, "torchrun --max-restarts 3 train.py").notes == (
        "--max-restarts of torchrun is left out in trials.",
    )
    assert not line(place, "A=1 python -u train.py").notes


def test_lines_that_another_command_must_start_are_answered_with_what_to_type(
    place: Path,
) -> None:
    ours = "autotune search --budget 90s --"
    cases = {
        "uv run train.py --lr 1": f"uv run {ours} train.py --lr 1",
        "uv run --with rich python -u train.py": f"uv run --with rich {ours} python -u train.py",
        "uv run -m pkg.train": f"uv run {ours} -m pkg.train",
        "A=1 poetry run pkg-train x": f"A=1 poetry run {ours} pkg-train x",
        "conda run -n env python train.py": f"conda run -n env {ours} python train.py",
        "pipenv run python train.py": f"pipenv run {ours} python train.py",
        "pdm run python train.py": f"pdm run {ours} python train.py",
        "hatch run python train.py": f"hatch run {ours} python train.py",
        "taskset -c 0-3 python train.py": f"taskset -c 0-3 {ours} python train.py",
        "numactl -N 0 torchrun train.py": f"numactl -N 0 {ours} torchrun train.py",
        "env -u A python train.py": f"env -u A {ours} python train.py",
        "sudo -E A=1 python train.py": f"sudo -E {ours} A=1 python train.py",
        "nsys profile -o x python train.py": f"{ours} python train.py",
        "python -m cProfile -o x train.py": f"{ours} python train.py",
        "bash -c 'python train.py x'": f"{ours} python train.py x",
        "mpirun -n 2 python train.py": f"{ours} torchrun --nproc-per-node N train.py",
        "deepspeed --num_gpus 2 train.py": f"{ours} torchrun --nproc-per-node N train.py",
        "horovodrun -np 2 python train.py": f"{ours} torchrun --nproc-per-node N train.py",
        "ray job submit -- python train.py": f"{ours} torchrun --nproc-per-node N train.py",
        "python -m torch.distributed.launch --nproc_per_node 2 train.py": (
            f"{ours} torchrun --nproc_per_node 2 train.py"
        ),
        "srun -n 2 --gres=gpu:2 python train.py": (
            "srun --gres=gpu:2 --ntasks 1 autotune search --budget 90s --nproc-per-node 2 -- "
            "python train.py"
        ),
    }
    for text, mend in cases.items():
        assert f"\n  {mend}" in f"{refusal(place, text)}\n", text
    assert "uv pip install autotune-torch" in refusal(place, "uv run train.py")


def test_lines_that_cannot_be_started_say_what_is_wrong_and_the_mend(place: Path) -> None:
    (place / "sweep.py").write_text("import hydra\n@hydra.main()\n")
    (place / "named.py").write_text("from hydra import (\n    compose,\n    main,\n)\n")
    (place / "compose.py").write_text("from hydra import compose, initialize\n")
    cases = {
        "trian.py": "There is no program 'trian.py'. Did you mean 'train.py'?",
        "python trian.py": "Did you mean 'train.py'?",
        "python": "names a program",
        "python -": "standard input",
        "python -c 'import this'": "Save the code as a file",
        "python -h": "trains nothing",
        "python -I train.py": "Leave it out",
        "python --bogus train.py": "no option --bogus of python",
        "python -m": "-m needs a value",
        "python -m pgk.train": "Did you mean 'pkg'?",
        "python -m bare": "Name a module of it, such as -m bare.fit",
        "python -m pkg/train.py": "Type -m pkg.train",
        "python pkg": "is a directory",
        "A=1": "names no program",
        "nohup": "names no program",
        "torchrun": "'torchrun' names no program. Name it after the options: torchrun … train.py",
        "torchrun --nproc-per-node 2": "'torchrun --nproc-per-node 2' names no program",
        "torchrun --nnodes 2 train.py": "autotune run --nnodes N best.yaml",
        "torchrun --nnodes=1:4 train.py": "several machines",
        "torchrun --nproc-per-node many train.py": "give a number of ranks",
        "torchrun --standalon train.py": "names no program",
        "torchrun --numa-binding node train.py": "Leave it out",
        "torchrun --nproc-per-nod": "needs a value",
        "accelerate config": "accelerate launch train.py",
        "bash missing.sh": "There is no script 'missing.sh'",
        "ls -l": "not a Python program",
        "python3.0 train.py": "There is no interpreter 'python3.0'",
        "sweep.py -m lr=1,2": "several times in one start",
        "python sweep.py lr=1 --multirun": "several times in one start",
        "named.py -m": "several times in one start",
    }
    for text, said in cases.items():
        if text == "torchrun --standalon train.py":
            assert program(place, text).ranks == 1, "torchrun takes what is cut short"
            continue
        assert said in refusal(place, text), text
    for own in ("train.py", "compose.py"):
        assert program(place, f"{own} -m").args == ("-m",), "not hydra.main, so its own flag"
    with pytest.raises(UsageError, match="Say it once"):
        read(["torchrun", "--nproc-per-node", "2", "train.py"], shell_at(place), ranks=3)
    assert read(["train.py"], shell_at(place), ranks=3).program.ranks == 3
    with pytest.raises(UsageError, match=r"needs a shell for \|"):
        words_of("python train.py | tee log")


def test_srun_is_left_out_inside_an_allocation_and_its_tasks_are_ranks(place: Path) -> None:
    inside = {"SLURM_JOB_ID": "7", "SLURM_NNODES": "1"}
    two = program(place, "srun -n2 --cpu-bind=cores python train.py", **inside)
    assert (two.ranks, two.env["SLURM_NTASKS"]) == (2, "2")
    one = program(place, "srun python train.py", **inside)
    assert (one.ranks, one.env["SLURM_PROCID"]) == (None, "0")
    assert "on 4 nodes" in refusal(place, "srun -N 4 python train.py", **inside)
    exported = program(place, "srun --export=ALL,A=1,HOME python train.py", **inside)
    assert exported.env.items() >= {"A": "1", **one.env}.items()
    for option, mend in {
        "-D sub": "srun -D sub would have no effect. Go there first: cd FOLDER, and leave it",
        "--chdir=sub": "srun --chdir sub would have no effect",
        "--export=A=1,B": "Use --export=ALL,A=1,B if",
        "--export=NONE": "remove them before autotune: env -u NAME autotune",
        "--export-file=x": "Set these variables before autotune",
    }.items():
        assert mend in refusal(place, f"srun {option} python train.py", **inside), option


def test_ranks_that_stand_for_tasks_of_srun_find_their_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("SLURM_STEP_NUM_TASKS", raising=False)
    assert "SLURM_PROCID" not in environment_of(1, 2, 29500, "run", "key")
    monkeypatch.setenv("SLURM_STEP_NUM_TASKS", "2")
    told = environment_of(1, 2, 29500, "run", "key")
    assert (told["SLURM_PROCID"], told["SLURM_LOCALID"], told["SLURM_NODEID"]) == ("1", "1", "0")
    assert "SLURM_PROCID" not in environment_of(1, 4, 29500, "run", "key"), "ranks of our own"


def test_what_must_act_on_a_run_is_answered_with_the_line_in_which_it_does(place: Path) -> None:
    shell = replace(shell_at(place), command="autotune run best.yaml")
    for text in (
        "timeout -k 5 1h python train.py x",
        "A=1 nohup python train.py",
        "nice -n 5 torchrun --nproc-per-node 2 train.py",
        "/usr/bin/time -v -- python train.py",
    ):
        with pytest.raises(UsageError) as caught:
            read(words_of(text), shell)
        place_of_program = min(text.find(w) for w in ("python", "torchrun") if w in text)
        before, after = text[:place_of_program], text[place_of_program:]
        assert str(caught.value).endswith(f"\n  {before}autotune run best.yaml -- {after}"), text
    shell = replace(shell, variables={**shell.variables, "SLURM_JOB_ID": "7", "SLURM_NNODES": "1"})
    for text in ("srun -n 2 nohup python train.py", "srun nohup python train.py"):
        with pytest.raises(UsageError, match="Leave it out, or write 'nohup' before autotune"):
            read(words_of(text), shell)
    assert read(words_of("exec python train.py"), shell).program.source.endswith("train.py")


def test_ranks_do_not_get_the_options_of_the_interpreter_that_runs_their_launcher(
    place: Path,
) -> None:
    text = "python -O -P -W error -X dev -m torch.distributed.run --nproc-per-node 2"
    found = program(place, f"{text} train.py")
    assert (found.python_options, found.warning_filters) == (("-u",), ())
    assert found.import_root == str(place)
    bare = program(place, f"{text} --no-python python -B train.py")
    assert bare.python_options == ("-B",)


def test_ranks_that_a_line_does_not_number_are_counted_by_torch(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotune.machine.hardware.cpu_quota", lambda: 77)
    from torch.distributed.run import determine_local_world_size

    found = program(place, "torchrun --nproc-per-node=cpu train.py")
    assert found.ranks == determine_local_world_size("cpu")


def test_an_interpreter_of_another_environment_is_told_within_seconds_what_to_install(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = place / "other" / "bin" / "python"
    other.parent.mkdir(parents=True)
    other.write_text("#!/bin/sh\necho /other; echo 3.12; echo False\n")
    other.chmod(0o755)
    said = refusal(place, "A=1 python -u train.py", PATH=f"{other.parent}:/usr/bin:/bin")
    assert f"'python' is {other} (Python 3.12)" in said
    assert f"Install autotune there first:\n  {other} -m pip install autotune-torch\n" in said
    assert f"\n  A=1 {other} -m autotune search --budget 90s -- python -u train.py" in said
    other.write_text("#!/bin/sh\necho /other; echo 3.12; echo True\n")
    assert "install" not in refusal(place, f"{other} train.py")
    other.write_text("#!/bin/sh\nsleep 60\n")
    monkeypatch.setattr("autotune.program.line.python.ASK_S", 0.1)
    assert "it did not answer within 0.1 s" in (said := refusal(place, f"{other} train.py"))
    assert f"\n  autotune search --budget 90s -- {sys.executable} train.py" in said
    assert "another environment" not in said
    monkeypatch.undo()
    other.write_text("#!/bin/sh\nexit 1\n")
    assert "If autotune is not installed there" in refusal(place, f"{other} train.py")
    shim = f'#!/bin/sh\nexec {sys.executable} "$@"\n'
    other.write_text(shim)
    assert program(place, f"{other} train.py").kind is SCRIPT, "a shim may lead to our own"


def test_a_shell_script_is_answered_with_the_number_of_the_line_that_trains(place: Path) -> None:
    (place / "train.sh").write_text(
        "#!/bin/bash\nset -e\nexport A=1\nLR=0.1\npip install -r x.txt\n# python old.py\n"
        'cd x && torchrun --nproc_per_node=2 \\\n  train.py --lr $LR --data $DATA "$@" > log 2>&1\n'
    )
    for text in ("bash train.sh --x 1", "./train.sh --x 1", "sh -e train.sh --x 1"):
        said = refusal(place, text)
        assert "its line 7 starts the program" in said, text
        line = "A=1 torchrun --nproc_per_node=2 train.py --lr 0.1 --data '$DATA' --x 1"
        assert f"autotune search --budget 90s -- {line}\n" in said, text
        assert "Replace by values: $DATA." in said
    (place / "two.sh").write_text("python -m pkg.train\npython src/run.py\n")
    said = refusal(place, "bash two.sh")
    assert "1: autotune search --budget 90s -- python -m pkg.train" in said
    assert "2: autotune search --budget 90s -- python src/run.py" in said
    (place / "none.sh").write_text("echo python\nmake train\n")
    assert "no line in it was found that starts a Python program" in refusal(place, "./none.sh")
    (place / "job.sbatch").write_text("#SBATCH -N 1\nsrun python train.py\n")
    assert "its line 2" in (said := refusal(place, "sbatch job.sbatch"))
    assert "In the script, write instead" in said


def test_lines_of_a_shell_script_that_start_nothing_are_left_alone(place: Path) -> None:
    text = "if [ $X ]; then python a.py; fi\nfor i in 1 2; do python b.py $i; done\necho 'open\n"
    found = candidates(text, (), shell_at(place))
    assert [(c.number, c.words[:2]) for c in found] == [
        (1, ("python", "a.py")),
        (2, ("python", "b.py")),
    ]


@pytest.mark.skipif(not shutil.which("accelerate", path=OUR_BIN), reason="accelerate is missing")
def test_accelerate_says_its_ranks_and_variables_by_flags_and_config_file(
    place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (place / "config.yaml").write_text(
        "compute_environment: LOCAL_MACHINE\ndistributed_type: MULTI_GPU\nnum_processes: 2\n"
        "num_machines: 1\nmixed_precision: bf16\ngpu_ids: all\nuse_cpu: false\n"
        "machine_rank: 0\nmain_training_function: main\nsame_network: true\n"
    )
    found = program(place, "accelerate launch --config_file config.yaml -m pkg.train --x 1")
    assert (found.kind, found.target, found.args) == (MODULE, "pkg.train", ("--x", "1"))
    assert found.ranks == 2
    assert found.env["ACCELERATE_MIXED_PRECISION"] == "bf16"
    answer = Answer(words=("-m", "pkg.train", "--x", "1"), ranks=2, env=dict(found.env))
    monkeypatch.setattr("autotune.program.line.accelerate._asked", lambda *_: answer)
    hyphened = program(place, "accelerate-launch --config_file config.yaml -m pkg.train --x 1")
    assert replace(hyphened, command=found.command) == found


def test_a_program_that_is_installed_counts_as_the_program_and_not_as_a_library(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(frames, "PROGRAM_PLACES", [])
    site = "/env/lib/python3.11/site-packages"
    own, other = (compile("", f"{site}/{name}/a.py", "exec") for name in ("trainer", "trainers"))
    frames.note_program(f"{site}/trainer/cli.py")
    frames.note_program("/home/user/train.py")
    assert frames.is_programs(own)
    assert not frames.is_programs(other)
    assert [frames.is_library(code.co_filename) for code in (own, other)] == [False, True]
