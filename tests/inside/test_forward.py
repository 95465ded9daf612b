"""The outermost calls: those of the program, never those that autograd makes by itself."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.utils.checkpoint import checkpoint

from autotune.inside.listener import Listener, Root
from autotune.inside.seams.forward import ForwardSeam
from tests.watching import installed

Loss = Callable[[nn.Module, torch.Tensor], torch.Tensor]


class Roots(Listener):
    """Notes the samples of outermost calls."""

    def __init__(self) -> None:
        self.samples: list[int] = []

    def forward_called(self, root: Root, args: tuple[Any, ...]) -> None:
        self.samples.append(len(args[0]))


def acting(listener: Listener | None = None) -> AbstractContextManager[ForwardSeam]:
    return installed(ForwardSeam(listener, list))


class Net(nn.Module):
    """An encoder of three layers, computed again in the backward pass by *how*, and a head."""

    def __init__(self, how: str = "") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.how = how
        self.encoder = nn.Sequential(
            *(nn.Sequential(nn.Linear(8, 8), nn.LayerNorm(8), nn.GELU()) for _ in range(3))
        )
        self.head = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.clone().requires_grad_()
        match self.how:
            case "reentrant" | "not reentrant":
                for layer in self.encoder:
                    x = checkpoint(layer, x, use_reentrant=self.how == "reentrant")
            case "nested":
                x = checkpoint(self.in_two, x, use_reentrant=False)
            case _:
                x = self.encoder(x)
        y: torch.Tensor = self.head(x)
        return y

    def in_two(self, x: torch.Tensor) -> torch.Tensor:
        x = checkpoint(self.encoder[0], x, use_reentrant=False)
        y: torch.Tensor = self.encoder[1:](x)
        return y


def trained(
    net: nn.Module, loss_of: Loss, around: AbstractContextManager[Any] | None = None
) -> list[torch.Tensor]:
    """The parameters after some steps of SGD, computed by ``backward()`` and ``autograd.grad``."""
    torch.manual_seed(1)
    parameters = list(net.parameters())
    for number in range(4):
        x = torch.randn(16, 8)
        with around or nullcontext():
            loss = loss_of(net, x)
        if number % 2 and getattr(net, "how", "") != "reentrant":
            gradients = torch.autograd.grad(loss, parameters)
        else:
            loss.backward()
            gradients = tuple(p.grad for p in parameters if p.grad is not None)
        with torch.no_grad():
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.add_(gradient, alpha=-0.1)
                parameter.grad = None
    return [p.detach().clone() for p in parameters]


def squares(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    return net(x).float().square().mean()  # type: ignore[no-any-return]


def bf16() -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16)


@pytest.mark.parametrize("how", ["reentrant", "not reentrant", "nested"])
def test_a_program_that_checkpoints_by_itself_computes_in_bf16_as_within_autocast(how: str) -> None:
    expected = trained(Net(how), squares, bf16())
    roots = Roots()
    with acting(roots) as seam:
        seam.set_autocast(torch.bfloat16)
        found = trained(net := Net(how), squares)
        assert list(seam.roots) == [net]
    assert roots.samples == [16] * 4
    assert all(map(torch.equal, found, expected))


def test_a_model_that_another_thread_computes_meanwhile_is_one_of_its_own() -> None:
    found: list[torch.dtype] = []
    with acting() as seam:
        seam.set_autocast(torch.bfloat16)
        inner = nn.Linear(8, 8)
        inner.register_forward_hook(lambda _module, _args, output: found.append(output.dtype))

        def elsewhere(*_: object) -> None:
            thread = threading.Thread(target=inner, args=(torch.randn(4, 8),))
            thread.start()
            thread.join()

        outer = nn.Linear(8, 8)
        outer.register_forward_pre_hook(elsewhere)
        outer(torch.randn(4, 8))
    assert found == [torch.bfloat16]


def by_parts(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    assert isinstance(net, Net)
    return net.head(net.encoder.forward(x)).float().square().mean()  # type: ignore[no-any-return]


def functional(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
    output = functional_call(net, dict(net.named_parameters()), (x,))
    return output.float().square().mean()  # type: ignore[no-any-return]


@pytest.mark.parametrize("loss_of", [by_parts, functional])
def test_parts_that_are_called_beside_the_model_compute_in_bf16_as_within_autocast(
    loss_of: Loss,
) -> None:
    expected = trained(Net(), loss_of, bf16())
    with acting() as seam:
        seam.set_autocast(torch.bfloat16)
        found = trained(Net(), loss_of)
    plain = trained(Net(), loss_of)
    for ours, theirs, fp32 in zip(found, expected, plain, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-3)
        assert not torch.equal(ours, fp32)


def test_gradients_by_sample_go_through_a_model_in_another_memory_order() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Flatten(), nn.Linear(16, 1))
    x = torch.randn(5, 3, 4, 4)

    def gradients() -> dict[str, torch.Tensor]:
        def loss(own: dict[str, torch.Tensor], sample: torch.Tensor) -> torch.Tensor:
            y: torch.Tensor = functional_call(net, own, (sample[None],)).square().mean()
            return y

        own = {name: p.detach() for name, p in net.named_parameters()}
        return dict(vmap(grad(loss), (None, 0))(own, x))

    expected = gradients()
    with acting() as seam:
        net(x)
        seam.set_channels_last(enabled=True)
        found = gradients()
    for name, gradient in expected.items():
        torch.testing.assert_close(found[name], gradient)


@pytest.mark.parametrize("channels", [1, 3])
def test_convolutions_compute_in_the_chosen_memory_order_also_of_one_channel(channels: int) -> None:
    """Such tensors are in both orders at once, and then their strides decide."""
    conv, x = nn.Conv2d(channels, 4, 3), torch.randn(2, channels, 8, 8)
    with acting() as seam:
        for enabled in (False, True, False):
            seam.set_channels_last(enabled=enabled)
            assert conv(x).is_contiguous(memory_format=torch.channels_last) is enabled


@pytest.mark.filterwarnings("ignore:.*torch.jit.*:FutureWarning")
@pytest.mark.filterwarnings("ignore:.*torch.jit.*:DeprecationWarning")
def test_a_model_is_traced_as_it_is() -> None:
    """Tracing compares two graphs, with the names of the variables that hold their tensors."""
    model, x = Net(), torch.randn(4, 8)
    with acting(Roots()):
        traced = torch.jit.trace(model, x)
        assert torch.equal(traced(x), model(x))


def test_a_model_that_trains_later_is_compiled_and_told_of_as_the_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As those of later folds; one that is only evaluated, such as an average, is left alone."""
    compiled: list[nn.Module] = []
    told: list[nn.Module] = []

    def note(call: Any, **_: object) -> Any:
        compiled.append(call.__self__)
        return call

    monkeypatch.setattr(torch, "compile", note)
    first, later, evaluated = Net(), Net(), Net()
    with acting() as seam:
        seam.on_root = told.append
        seam.compile_in(mode="default")
        first(torch.randn(2, 8))
        seam.narrow()
        for model in (later, evaluated):
            with torch.no_grad():
                model(torch.randn(2, 8))
        later(torch.randn(2, 8))
        later(torch.randn(2, 8))
    assert compiled == [first, later]
    assert told == [first, later, evaluated]
