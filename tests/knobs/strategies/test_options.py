"""Options of the strategies, seen where they act; one rank is enough for that."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import distributed, nn
from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor

from autotune.inside.seams.checkpoint import blocks_of
from autotune.knobs.strategies import STRATEGIES, Site
from autotune.knobs.strategies.fsdp import OLDEST_ON_CPU, Fsdp
from autotune.program.config import KnobValue
from autotune.program.environment import release_of

needs_fsdp_on_cpu = pytest.mark.skipif(
    release_of(torch.__version__) < release_of(OLDEST_ON_CPU),
    reason="this torch has no FSDP on the CPU",
)


class Block(nn.Module):
    """A part that comes several times; it notes the dtype it computes in."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.dtype = self.linear.weight.dtype
        return torch.relu(self.linear(x))


@pytest.fixture(autouse=True)
def _one_rank() -> Iterator[None]:
    distributed.init_process_group("gloo", store=HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def distribute(strategy: str, model: nn.Module, **options: KnobValue) -> Any:
    """Distribute a model as the seam does."""
    site = Site(0, 1, options, (), lambda module: blocks_of([module]))
    return STRATEGIES[strategy].distribute(model, site)


@pytest.mark.parametrize("strategy", ["ddp", "zero1"])
def test_options_of_ddp_reach_it(strategy: str) -> None:
    plain = distribute(strategy, nn.Linear(8, 8))
    asked = distribute(
        strategy,
        nn.Linear(8, 8),
        ddp_bucket_cap_mb=5,
        ddp_gradient_as_bucket_view=True,
        ddp_static_graph=True,
    )
    assert (plain.bucket_bytes_cap, asked.bucket_bytes_cap) == (25 << 20, 5 << 20)
    assert (plain.gradient_as_bucket_view, asked.gradient_as_bucket_view) == (False, True)
    assert (plain.static_graph, asked.static_graph) == (False, True)


def test_batchnorm_becomes_one_of_all_ranks_which_ddp_takes_on_gpus_alone() -> None:
    each = distribute("ddp", nn.Sequential(nn.BatchNorm1d(8)), sync_batchnorm=False)
    assert type(each.module[0]) is nn.BatchNorm1d
    with pytest.raises(ValueError, match="SyncBatchNorm layers only work with GPU modules"):
        distribute("ddp", nn.Sequential(nn.BatchNorm1d(8)), sync_batchnorm=True)


def ends_with(*, shards: bool, clears_late: bool = False, reshards: bool = True) -> list[float]:
    """Train for some steps, looking at the model between backward pass and step; return weights."""
    torch.manual_seed(0)
    model = nn.Sequential(Block(), Block(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    if shards:
        site = Site(
            0,
            1,
            {"fsdp_reshard_after_forward": reshards},
            (optimizer,),
            lambda module: blocks_of([module]),
        )
        fsdp = Fsdp()
        fsdp.distribute(model, site)
        fsdp.adopt(optimizer, site)
    for x in torch.randn(4, 6, 8):
        optimizer.zero_grad() if not clears_late else None
        loss = model(x).square().mean()
        model.zero_grad() if clears_late else None
        loss.backward()
        model(x)  # as for the accuracy of the batch
        nn.utils.clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()
    return [float(value.double().sum()) for value in model.state_dict().values()]


@needs_fsdp_on_cpu
def test_gradients_are_cleared_and_weights_are_new_wherever_a_program_does_so_under_fsdp() -> None:
    for clears_late, reshards in ((False, True), (True, True), (False, False)):
        own = ends_with(shards=False, clears_late=clears_late)
        assert ends_with(shards=True, clears_late=clears_late, reshards=reshards) == own


@needs_fsdp_on_cpu
def test_options_of_fsdp_reach_it() -> None:
    def blocks(**options: KnobValue) -> Any:
        model = nn.Sequential(*(Block() for _ in range(3)))
        distribute("fsdp", model, **options)
        return model

    for shard, units in (("blocks", 4), ("whole", 1)):
        model = blocks(fsdp_shard=shard)
        assert sum(isinstance(module, FSDPModule) for module in model.modules()) == units
    for reshards in (True, False):
        model = blocks(fsdp_shard="blocks", fsdp_reshard_after_forward=reshards)
        model(torch.randn(4, 8))
        assert isinstance(model[0].linear.weight, DTensor) is reshards
    for precision, dtype in (("bf16", torch.bfloat16), ("fp32", torch.float32)):
        model = blocks(fsdp_mixed_precision=precision)
        output = model(torch.randn(4, 8))
        output.sum().backward()
        assert {block.dtype for block in model} == {dtype}
        assert output.dtype is torch.float32
        assert all(p.dtype is torch.float32 and p.grad is not None for p in model.parameters())
