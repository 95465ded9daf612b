"""Switches of the process: they are set where PyTorch reads them, and what they choose agrees."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import backends
from torch.backends import cuda, cudnn
from torch.nn import functional

from autotune.inside.seams.torch_settings import (
    HAS_NEWER_NAMES,
    SWITCHES,
    Switch,
    TorchSettingsSeam,
)
from tests.watching import profile_of

# torch adds it where it is imported; before torch 2.9 there is none
conv: Any = getattr(cudnn, "conv", None)


@pytest.fixture
def seam() -> Iterator[TorchSettingsSeam]:
    seam = TorchSettingsSeam()
    yield seam
    seam.switch("attention", "auto")


def test_a_fused_kernel_of_attention_leaves_the_plain_one_for_what_it_cannot_do(
    seam: TorchSettingsSeam,
) -> None:
    torch.manual_seed(0)
    q = torch.randn(2, 4, 16, 8)
    mask = torch.randn(16, 16, requires_grad=True)  # fused kernels take none that is learned
    expected = functional.scaled_dot_product_attention(q, q, q, attn_mask=mask)
    seam.switch("attention", "flash")
    torch.testing.assert_close(
        functional.scaled_dot_product_attention(q, q, q, attn_mask=mask), expected
    )


def test_a_program_with_one_kernel_of_attention_alone_gets_it_back_alone(
    seam: TorchSettingsSeam,
) -> None:
    seam.switch("attention", "auto")
    try:
        cuda.enable_math_sdp(False)
        cuda.enable_mem_efficient_sdp(False)
        cuda.enable_cudnn_sdp(False)
        seam.settle()
        assert cuda.math_sdp_enabled(), "all were asked for"
        seam.switch("attention", "flash")
        assert (cuda.flash_sdp_enabled(), cuda.math_sdp_enabled()) == (True, False)
    finally:
        cuda.enable_math_sdp(True)
        cuda.enable_mem_efficient_sdp(True)
        cuda.enable_cudnn_sdp(True)
        seam.settle()


@pytest.fixture
def tf32() -> Iterator[Switch]:
    """The switch of a process in which nobody has set anything yet."""
    yield replace(SWITCHES["tf32"])
    torch.set_float32_matmul_precision("highest")
    cudnn.allow_tf32 = True
    of_all: tuple[Any, ...] = (backends, cudnn, cuda.matmul)
    for module in of_all if HAS_NEWER_NAMES else ():
        module.fp32_precision = "none"


SETS = {
    "nothing": (),
    "older names": (
        partial(setattr, cuda.matmul, "allow_tf32", True),
        partial(setattr, cudnn, "allow_tf32", False),
    ),
    "newer names": (
        partial(setattr, cuda.matmul, "fp32_precision", "tf32"),
        partial(setattr, conv, "fp32_precision", "ieee"),
    ),
    "a newer name after an older": (
        partial(torch.set_float32_matmul_precision, "high"),
        partial(setattr, cuda.matmul, "fp32_precision", "ieee"),
    ),
    "a name for all": (partial(setattr, backends, "fp32_precision", "tf32"),),
}


@pytest.mark.skipif(not HAS_NEWER_NAMES, reason="this torch has the older names alone")
@pytest.mark.parametrize("sets", SETS.values(), ids=SETS.keys())
def test_tf32_comes_and_goes_by_whatever_names_the_program_sets_it(
    sets: Sequence[Callable[[], object]], tf32: Switch
) -> None:
    """A name that the program could read, older names among them, can be read at all times."""
    for set_up in sets:
        set_up()
    own, convolutions = tf32.read(), conv.fp32_precision
    for precision in ("fp32", "tf32", "fp32"):
        tf32(precision)
        tf32.look_again()
        is_tf32 = precision == "tf32"
        assert (cuda.matmul.fp32_precision == "tf32") == is_tf32
        assert conv.fp32_precision == ("tf32" if is_tf32 else convolutions)
        lost = [was for was, now in zip(own, tf32.read(), strict=True) if now is None]
        assert not any(was is not None for was in lost)
    tf32("bf16")
    assert tf32.read() == own, "another format leaves it to the program"


@pytest.mark.parametrize("is_set", [False, True])
def test_tf32_comes_and_goes_by_the_names_that_every_torch_has(
    tf32: Switch, *, is_set: bool
) -> None:
    cuda.matmul.allow_tf32 = is_set
    own = tf32.read()
    for precision in ("fp32", "tf32", "fp32"):
        tf32(precision)
        assert cuda.matmul.allow_tf32 == (precision == "tf32")
        assert torch.get_float32_matmul_precision() == (
            "high" if precision == "tf32" else "highest"
        )
    tf32("bf16")
    assert tf32.read() == own, "another format leaves it to the program"


FORKS = """
import os
import sys
import torch
from autotune.inside.seams.torch_settings import TorchSettingsSeam

def forked(does):
    # the threads that a new process has after it has computed
    child = os.fork()
    if not child:
        does()
        (products @ products).relu()
        os._exit(torch.get_num_threads())
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


torch.set_num_threads(2)
seam, products = TorchSettingsSeam(), torch.randn(512, 512)
(products @ products).relu()  # its threads work
torch.set_num_threads(1)
print(forked(lambda: seam.switch("threads", 2)))  # a program whose processes train
seam.switch("threads", 2)
print(forked(lambda: None), forked(seam.settle))
torch.set_num_threads(1)
print(forked(seam.settle))  # what it set itself since
seam.settle()
torch.set_num_threads(3)
seam.settle()
seam.switch("threads", 2)
print(torch.get_num_threads(), seam.switch("threads", 4), torch.get_num_threads())
"""


def test_a_forked_process_has_no_more_threads_than_the_program() -> None:
    """Threads that worked before a fork are waited for forever after it."""
    command = [sys.executable, "-c", FORKS]
    ended = subprocess.run(command, check=True, timeout=120.0, capture_output=True, text=True)
    assert ended.stdout.split() == ["1", "1", "1", "1", "2", "None", "4"]


def test_the_attention_backend_is_known_of_programs_that_call_attention(tmp_path: Path) -> None:
    source = """
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for x, y in loader:
    optimizer.zero_grad()
    q = model(x).unsqueeze(0)
    {attention}
    q.square().mean().backward()
    optimizer.step()
"""
    attention = "q = nn.functional.scaled_dot_product_attention(q, q, q)"
    calls = profile_of(tmp_path, source.format(attention=attention)).settings
    assert calls.attention == "auto"
    assert calls.threads == 1
    assert profile_of(tmp_path, source.format(attention="")).settings.attention is None
