"""The folder in which the commands of the pages are run: small programs, and a search of one.

``train.py`` is a real program that trains in a second. A search, a measurement or a comparison
would take minutes on it, so these run on a scripted machine in virtual time; all else is real.
"""

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from typer.testing import CliRunner

from autotune.cli.app import app
from autotune.knobs import KnobValue, registry
from autotune.machine import host_lock
from autotune.program.flags import Flag
from autotune.results import bestfile
from autotune.results.record import SearchInfo
from autotune.tuning.storage import search_dir
from autotune.tuning.storage.record_storage import RecordStorage
from autotune.tuning.storage.search_dir import SearchDir
from autotune.tuning.storage.study import Study
from autotune.tuning.surroundings import THIS_MACHINE
from tests.docs.pages import ROOT
from tests.made import commit, make_loader, make_profile, storage_in_memory
from tests.scripted import Script, ScriptedMachine

CUSTOM_KNOB = ROOT / "examples" / "custom_knob"
TRAIN = """\
import argparse

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, get_worker_info


class Numbers(Dataset):
    def __len__(self):
        return 256

    def __getitem__(self, index):
        return torch.full((8,), index / 256), get_worker_info() is not None


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--hidden", type=int, default=64)
    args = parser.parse_args()
    loader = DataLoader(Numbers(), batch_size=32)
    model = nn.Sequential(nn.Linear(8, args.hidden), nn.ReLU(), nn.Linear(args.hidden, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=args.lr)
    for _ in range(args.epochs):
        for x, by_worker in loader:
            loss = model(x).square().mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    print("the last batch came from", "a worker" if by_worker.all() else "the process that trains")


if __name__ == "__main__":
    main()
"""
TRAINED = "the last batch came from a worker\n"  # what it prints under the config that is found
PROGRAMS = (
    "train.py", "train_ddp.py", "package/train.py", "my_package/training.py",
    "examples/digits_cnn/train.py",
)  # fmt: skip
SPACE = "version: 1\nknobs:\n  workers: auto\n  threads: auto\n"
GAIN: dict[str, dict[KnobValue, float]] = {"workers": {1: 1.5}, "devices": {"ddp-2": 1.8}}
# The profile is train.py's, so that the config that is found finds its loader there
LOADER = make_loader(dataset="Numbers", dataset_len=256, batch_size=32, sampler="SequentialSampler")
FAST = Script(GAIN, profile=make_profile(loaders=(LOADER,)), start_s=10.0, step_s=2.0)
# Searches of this one end after a few trials: what a search finds is tested elsewhere.
SLOW = Script(
    GAIN,
    profile=make_profile(flags=(Flag("--hidden", value=64, takes="int"),)),
    start_s=10.0,
    step_s=4.0,
    peak_bytes=lambda *_: 1 << 30,
)
RANKS = "ranks.yaml"  # a config with several ranks
SEARCHES = (("ranks", "devices", RANKS), ("train", "workers", "best.yaml"))


@contextmanager
def scripted(script: Script) -> Iterator[None]:
    """Let searches, measurements and comparisons run in virtual time.

    What is replaced are clock, processes and machine check. All commands take them from the one
    object ``THIS_MACHINE``, as the default of an argument. The command line has no option for them,
    so its fields are replaced; it is frozen, therefore in its ``__dict__``.
    """
    with pytest.MonkeyPatch.context() as patch:
        for name, real in vars(ScriptedMachine(script).surroundings).items():
            patch.setitem(vars(THIS_MACHINE), name, real)
        # A scripted machine is nobody else's, however many tests run on this one
        patch.setattr(host_lock, "NAMES", f"\0autotune-test-{os.getpid()}/")
        yield


@contextmanager
def records_in_memory() -> Iterator[None]:
    """Keep the record of a search that is begun here in memory, as ``tests.scripted.begin`` does.

    Dozens of commands search, and a record in a file takes longer than all the rest of a search in
    virtual time. Earlier records are read from their files.
    """
    kept: dict[Path, RecordStorage] = {}
    load = SearchDir.load_study

    def create_study(self: SearchDir, head: SearchInfo) -> Study:
        kept[self.path] = storage_in_memory()
        Study.create(kept[self.path], search_dir.STUDY_NAME, head)
        return self.load_study()

    def load_study(self: SearchDir) -> Study:
        if self.path in kept:
            return Study.load(kept[self.path], search_dir.STUDY_NAME)
        return load(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(SearchDir, "create_study", create_study)
        patch.setattr(SearchDir, "load_study", load_study)
        yield


@contextmanager
def custom_knob_installed(folder: Path) -> Iterator[None]:
    """Install the example's knob as ``pip install ./examples/custom_knob`` would."""
    installed = folder / "gc_knob-1.0.dist-info"
    installed.mkdir()
    installed.joinpath("METADATA").write_text(
        "Metadata-Version: 2.1\nName: gc-knob\nVersion: 1.0\n"
    )
    installed.joinpath("entry_points.txt").write_text(
        "[autotune.knobs]\ngc_threshold = gc_knob:GcThreshold\n"
    )
    with pytest.MonkeyPatch.context() as patch:
        for path in (folder, CUSTOM_KNOB):
            patch.syspath_prepend(str(path))
        registry.cache_clear()
        yield
    registry.cache_clear()


def give_a_larger_batch(path: Path) -> None:
    """Let a best.yaml hold a second config with larger steps, as a search that found one does."""
    file = bestfile.read(path)
    larger = bestfile.LargerBatch(config={**file.config, "batch_size": 64}, speedup=file.speedup)
    path.write_text(file.model_copy(update={"larger_batch": larger}).text(), encoding="utf-8")


def make_project(folder: Path) -> None:
    """Write the programs into a repository with two commits, and search one of them twice.

    The searches are ``ranks``, which finds a config with several ranks, and ``train``.
    """
    for name in PROGRAMS:
        folder.joinpath(name).parent.mkdir(parents=True, exist_ok=True)
        folder.joinpath(name).write_text(TRAIN)
    for name in ("package", "my_package"):
        folder.joinpath(name, "__init__.py").touch()
    commit(folder)
    folder.joinpath("my_space.yaml").write_text(SPACE)
    commit(folder)
    folder.joinpath("data").mkdir()
    folder.joinpath("scratch").mkdir()
    with pytest.MonkeyPatch.context() as patch, scripted(FAST):
        patch.chdir(folder)
        for name, tune, output in SEARCHES:
            line = ["search", "--budget", "6m", "--name", name, "--tune", tune, "-o", output]
            done = CliRunner().invoke(app, [*line, "train.py"])
            assert done.exit_code == 0, done.output
    shutil.copy(folder / "best.yaml", folder / "other.yaml")
