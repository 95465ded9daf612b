from __future__ import annotations

import builtins
import copy
import gc
import io
import os
import pickle
import weakref
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.backends import cudnn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from autotune.inside.listener import Listener
from autotune.inside.seam_set import STEPS_UNTIL_ROOTS_ARE_KNOWN, SeamSet
from autotune.program.applied_config import AppliedConfig
from autotune.program.config import Config, KnobValue
from autotune.program.fence_options import FenceKind
from autotune.program.lr import LrRule
from autotune.rig.wire import Start
from tests.made import PROGRAM, make_applied, make_loader
from tests.watching import installed, running

PATCHED = (
    (nn.Module, "__call__"),
    (DataLoader, "__init__"),
    (DataLoader, "__iter__"),
    (torch.optim.Optimizer, "add_param_group"),
    (torch.autograd, "backward"),
    (torch.autocast, "__enter__"),
    (torch, "save"),
    (builtins, "open"),
    (io, "open"),
    (os, "rename"),
    (os, "scandir"),
)
FACTS = make_loader(dataset_len=100, batch_size=10)
BASELINE: dict[str, KnobValue] = {
    "workers": 0,
    "batch_size": 10,
    "precision": "fp32",
    "memory_format": "contiguous",
    "threads": 2,
    "compile": "off",
}


def applied(rule: LrRule = LrRule.LINEAR, **changes: KnobValue) -> AppliedConfig:
    own = Config(BASELINE)
    return make_applied({**own, **changes}, baseline=own, loader=FACTS, lr_rule=rule)


def train_loader(batch_size: int = 10) -> DataLoader[tuple[torch.Tensor, ...]]:
    return DataLoader(TensorDataset(torch.randn(100, 3, 8, 8)), batch_size, shuffle=True)


def conv_net() -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(144, 2))


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> torch.Tensor:
    output: torch.Tensor = model(torch.randn(4, 3, 8, 8))
    optimizer.zero_grad()
    output.sum().backward()
    optimizer.step()
    return output


def test_installed_seams_are_removed_without_a_trace(tmp_path: Path) -> None:
    before = [vars(owner).get(name) for owner, name in PATCHED]
    seams = SeamSet(Listener(), None)
    seams.fence.guard_files(Start(PROGRAM, None, str(tmp_path / "files"), FenceKind.GUARD))
    seams.install()
    seams.watch()
    during = [vars(owner).get(name) for owner, name in PATCHED]
    assert all(a is not b for a, b in zip(before, during, strict=True))
    model = conv_net()
    for _ in range(STEPS_UNTIL_ROOTS_ARE_KNOWN):
        step(model, torch.optim.SGD(model.parameters(), lr=0.1))
    seams.remove()
    assert [vars(owner).get(name) for owner, name in PATCHED] == before
    assert "__call__" not in vars(nn.Sequential)


def test_a_loader_that_is_no_longer_there_is_said(caplog: pytest.LogCaptureFixture) -> None:
    with running(applied(batch_size=25)):
        model = conv_net()
        assert train_loader(batch_size=20).batch_size == 20
        step(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert "no DataLoader here is the one that was tuned" in caplog.text
    assert "batch_size" in caplog.text


@pytest.mark.parametrize("precision", ["fp32", "fp16"])
def test_the_seams_keep_no_optimizer_alive(precision: str) -> None:
    with running(applied(precision=precision, batch_size=40)):
        optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)
        kept = weakref.ref(optimizer)
        del optimizer
        gc.collect()
        assert kept() is None


@pytest.mark.parametrize("kind", [FenceKind.GUARD, FenceKind.OVERLAY])
def test_guarded_functions_bind_and_pickle_as_those_written_in_c_do(
    kind: FenceKind, tmp_path: Path
) -> None:
    with installed(SeamSet(Listener(), None)) as seams:
        seams.fence.guard_files(Start(PROGRAM, None, str(tmp_path / "files"), kind))

        class Reader:
            opens: Any = open
            renames: Any = os.rename

        (tmp_path / "a").write_text("old")
        Reader().renames(tmp_path / "a", tmp_path / "b")
        with Reader().opens(tmp_path / "b") as file:
            assert file.read() == "old"
        assert copy.deepcopy(os.rename) is os.rename
        assert pickle.loads(pickle.dumps([open, os.open])) == [open, os.open]
        assert open is io.open
        assert os.rename.__name__ == "rename"
        assert os.rename in os.supports_dir_fd


def test_the_loader_that_trains_gets_the_options_and_its_length_is_true() -> None:
    with running(applied(batch_size=25, workers=1, prefetch_factor=5)):
        train = train_loader()
        val = DataLoader(TensorDataset(torch.randn(40, 1)), batch_size=10)
        assert (len(train), train.batch_size) == (4, 25)
        assert (train.num_workers, train.prefetch_factor) == (1, 5)
        assert (len(val), val.batch_size, val.num_workers) == (4, 10, 0)
        assert [len(batch[0]) for batch in train] == [25] * 4


def test_what_the_program_sets_at_its_loader_later_holds_in_a_copy_that_was_made_before() -> None:
    with running(applied()) as seams:
        train, variants = train_loader(), seams.loader.variants
        seams.loader.options.request(num_workers=2)
        copy = variants.of(train)
        assert copy.num_workers == 2
        assert variants.of(train) is copy, "its persistent workers serve each epoch"
        train.collate_fn = list
        assert variants.of(train).collate_fn is list


def test_settings_that_the_program_sets_itself_are_set_again_before_its_model_is_called() -> None:
    """The algorithms of the first call are kept by cuDNN, whatever is set later."""
    seen, before, threads = [], cudnn.benchmark, torch.get_num_threads()
    call = nn.Module.__call__
    try:
        with running(applied(cudnn="benchmark", threads=1)):
            model = conv_net()
            model[0].register_forward_hook(
                lambda *_: seen.append((cudnn.benchmark, torch.get_num_threads()))
            )
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            cudnn.benchmark = False  # as the ImageNet example does
            torch.set_num_threads(2)
            for _ in range(STEPS_UNTIL_ROOTS_ARE_KNOWN):
                step(model, optimizer)
                assert nn.Module.__call__ is call, "compiled code would be compiled again"
    finally:
        cudnn.benchmark = before
        torch.set_num_threads(threads)
    assert seen == [(True, 1)] * STEPS_UNTIL_ROOTS_ARE_KNOWN


def test_settings_stay_out_of_a_worker_that_calls_a_model() -> None:
    """It has one thread: OpenMP's do not survive the fork, and more would be waited for forever."""

    class Encoded(Dataset[tuple[torch.Tensor, int]]):
        encoder = nn.Linear(4, 2)

        def __len__(self) -> int:
            return 4

        def __getitem__(self, item: int) -> tuple[torch.Tensor, int]:
            return self.encoder(torch.ones(4)).detach(), torch.get_num_threads()

    with running(applied(threads=2)):
        loader = DataLoader(Encoded(), num_workers=1, multiprocessing_context="fork")
        assert {int(threads) for _, threads in loader} == {1}


def test_compile_reaches_the_model_without_changing_what_it_saves() -> None:
    with running(applied(compile="default")):
        model = nn.Linear(4, 4)
        names = set(model.state_dict())
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(STEPS_UNTIL_ROOTS_ARE_KNOWN):
            model(torch.randn(2, 4)).sum().backward()
            optimizer.step()
        assert model._compiled_call_impl is not None
        assert set(model.state_dict()) == names


def test_bf16_leaves_the_model_and_its_loss_as_they_are() -> None:
    """It is copied and pickled as without it, and the loss is computed in fp32."""
    seen: list[torch.dtype] = []
    with running(applied(precision="bf16")):
        model = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        handle = model[0].register_forward_hook(lambda _m, _i, out: seen.append(out.dtype))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for _ in range(STEPS_UNTIL_ROOTS_ARE_KNOWN):
            output = model(torch.randn(2, 4))
            output.sum().backward()
            optimizer.step()
            assert output.dtype is torch.float32
        assert not torch.is_autocast_enabled("cpu")
        handle.remove()
        twin = copy.deepcopy(model)
        frozen = pickle.dumps(model)
    assert set(seen) == {torch.bfloat16}
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    with torch.no_grad():
        next(twin.parameters()).zero_()
        x = torch.randn(1, 4)
        assert not torch.equal(twin(x), model(x))
        torch.testing.assert_close(pickle.loads(frozen)(x), model(x))
