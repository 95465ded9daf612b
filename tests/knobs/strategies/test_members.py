"""The contract that every strategy keeps, and the parts of those that need GPUs."""

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, AdamW

from autotune.inside.listener import Listener, Root
from autotune.inside.observe import distributed_by, model_facts
from autotune.inside.seam_set import SeamSet
from autotune.inside.seams.optimizer import optimizer_facts
from autotune.knobs.base import Here
from autotune.knobs.strategies import STRATEGIES, Strategy
from autotune.knobs.strategies.model_split import cut, staged
from autotune.machine.hardware import Hardware
from autotune.program.config import Config
from tests import gpu_fakes
from tests.knobs.strategies.together import ByNorm
from tests.knobs.test_contract import everywhere, is_clause
from tests.made import A100, make_hardware, make_loader, make_profile
from tests.watching import installed

every_strategy = pytest.mark.parametrize("strategy", STRATEGIES.values(), ids=STRATEGIES.keys())
TWO_GPUS = make_hardware(gpus=(A100, A100))


LARGE = {"device": "cuda", "stages": 12, "parameters": 2 * 10**9}
ON_GPUS = {"single", "data_parallel", "ddp", "fsdp", "zero1"}
STREAM = make_loader(iterable=True, dataset_len=None)
BY_LOSS = replace(make_profile().optimizers[0], families=("LBFGS", "Optimizer"))


@pytest.mark.parametrize(
    ("changes", "hardware", "offered"),
    [
        ({"device": "cuda"}, TWO_GPUS, ON_GPUS),
        ({}, make_hardware(), ON_GPUS - {"data_parallel"}),
        ({"channels_last": True}, make_hardware(), {"single", "ddp", "zero1"}),
        ({"device": "cuda", "distributed_by": "Accelerate"}, TWO_GPUS, {"single", "own"}),
        (LARGE, TWO_GPUS, {*ON_GPUS, "model_split"}),
        ({**LARGE, "parameters": 10**8}, TWO_GPUS, ON_GPUS),
        ({**LARGE, "stages": 0}, TWO_GPUS, ON_GPUS),
        ({"optimizers": (BY_LOSS,)}, make_hardware(), {"single"}),
        ({"loaders": (STREAM,)}, make_hardware(), {"single"}),
    ],
)
def test_strategies_are_offered_where_they_can_act(
    changes: dict[str, Any], hardware: Hardware, offered: set[str]
) -> None:
    here = Here(hardware, make_profile(**changes))
    assert {n for n, s in STRATEGIES.items() if s.refusal(here) is None} == offered


@every_strategy
def test_a_strategy_acts_or_says_why_not(strategy: Strategy) -> None:
    assert STRATEGIES[strategy.name] is strategy
    for where, hardware, profile in everywhere():
        reason = strategy.refusal(Here(hardware, profile))
        assert reason is None or is_clause(reason), where
    conflict = strategy.conflict(
        Config({"devices": strategy.name, "memory_format": "channels_last"})
    )
    assert conflict is None or conflict.endswith(".")


class Loss(nn.Module):
    """A model that returns its loss, as many do; it notes how many samples it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 1)
        self.sizes: list[int] = []

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        self.sizes.append(len(batch))
        return torch.as_tensor(self.linear(batch).square().mean())


@pytest.mark.parametrize("strategy", ["own", "single", "ddp"])
def test_replicas_stay_on_the_one_device_that_trains(strategy: str) -> None:
    """The losses that a script adds up or averages are as many as before, and so are its keys."""
    torch.manual_seed(0)
    loss, batch = Loss(), torch.randn(4, 3)
    expected = loss(batch)
    loss.sizes.clear()
    for model in (
        gpu_fakes.Replicated(loss),
        nn.Sequential(gpu_fakes.Replicated(loss)),
    ):  # as in the VGG of examples
        seams = SeamSet(None, None)
        seams.model.distribution.use(strategy)
        with installed(seams):
            losses = model(batch)
        assert losses.shape == (2,)
        torch.testing.assert_close(losses.sum(), 2 * expected)
        assert [name.rpartition("module.")[2] for name in model.state_dict()] == [
            "linear.weight",
            "linear.bias",
        ]
        (part,) = (module for module in model.modules() if isinstance(module, gpu_fakes.Replicated))
        assert part.device_ids == [0, 1]
    assert loss.sizes == ([2, 2] if strategy == "own" else [4]) * 2


def test_what_is_replicated_is_seen_and_what_replicates_in_its_own_way_left_alone() -> None:
    class Balanced(gpu_fakes.Replicated):
        def forward(self, *inputs: Any, **kwargs: Any) -> Any:
            return super().forward(*inputs, **kwargs)

    for model, count, by in (
        (Loss(), 0, ""),
        (nn.DataParallel(Loss()), max(1, torch.cuda.device_count()), ""),
        (nn.Sequential(gpu_fakes.Replicated(Loss())), 2, ""),
        (Balanced(Loss()), 2, "Balanced"),
    ):
        assert model_facts({model: Root(4)}).replicas == count
        assert distributed_by([model], "") == by


def test_an_optimizer_with_a_step_of_its_own_is_not_shown_a_part_of_its_parameters() -> None:
    class Renamed(AdamW):
        pass

    parameters = [nn.Parameter(torch.ones(2))]
    for cls in (ByNorm, SGD, AdamW, Renamed):
        optimizer = cls(parameters, lr=0.1)
        with installed(SeamSet(Listener(), None)):  # it wraps steps
            here = Here(TWO_GPUS, make_profile(optimizers=(optimizer_facts(optimizer),)))
        refusal = STRATEGIES["zero1"].refusal(here)
        assert "ByNorm" in refusal if refusal else cls is not ByNorm, cls
        assert STRATEGIES["ddp"].refusal(here) is None


@pytest.mark.parametrize(
    ("weights", "stages", "runs"),
    [
        ([1, 1, 1, 1], 2, [[0, 1], [2, 3]]),
        ([9, 1, 1, 1], 2, [[0], [1, 2, 3]]),
        ([0, 4, 0, 4, 0], 2, [[0, 1], [2, 3, 4]]),
        ([5], 4, [[0]]),
        ([0, 0], 2, [[0, 1]]),
    ],
)
def test_a_model_is_cut_into_stages_of_about_equal_weight(
    weights: list[int], stages: int, runs: list[list[int]]
) -> None:
    assert cut(weights, stages) == runs


@pytest.mark.parametrize("parts", [1, 3])
def test_stages_compute_what_the_whole_model_computes(parts: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(nn.Sequential(nn.Linear(6, 6), nn.Tanh()) for _ in range(5)))
    whole = copy.deepcopy(model)
    cpu = torch.device("cpu")  # in the place of two GPUs: the stages and parts are the same
    split = staged(model, [cpu, cpu], parts)
    batch = torch.randn(7, 6)
    assert torch.allclose(split(batch), whole(batch), atol=1e-6)
    split(batch).sum().backward()
    whole(batch).sum().backward()
    for ours, theirs in zip(model.parameters(), whole.parameters(), strict=True):
        assert ours.grad is not None
        assert theirs.grad is not None
        assert torch.allclose(ours.grad, theirs.grad, atol=1e-5)
