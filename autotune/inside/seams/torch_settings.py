"""torch's settings that hold for the whole process, by the names of their knobs.

Each switch can return to what the program itself has set, because a search changes it several times
in one process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.backends import cuda, cudnn, mkldnn
from torch.nn import functional

from autotune.inside.hubs.patches import Patches, Seam
from autotune.program.config import KnobValue
from autotune.program.profile import TorchSettings


class TorchSettingsSeam:
    """Sets process-wide settings of torch, and sets them again after the program's set-up code.

    ``Steering`` calls ``switch()`` on the main thread, before the program starts or between two
    steps. ``SeamSet`` calls ``settle()`` on the thread that trains, before the first call of each
    model and before the first step: cuDNN keeps what it chose for the shapes of the first call, and
    what a program sets after a trial call of its model counts as well.
    """

    def __init__(self) -> None:
        self._wanted: dict[str, KnobValue] = {}
        self._pid = os.getpid()

    @property
    def is_needed(self) -> bool:
        """Whether any setting was requested."""
        return bool(self._wanted)

    def switch(self, name: str, value: KnobValue) -> None:
        """Set a setting now, and again when the program's set-up is over.

        Args:
            name: A key of SWITCHES: the setting's knob; ``tf32`` and ``medium`` are ``precision``.
            value: A value of that knob.
        """
        self._wanted[name] = value
        SWITCHES[name](value)

    def settle(self, *, in_forks: bool = True) -> None:
        """Set the requested values again, as the program's set-up code may have changed them.

        A process that the program has forked since is left alone, unless that trains (*in_forks*).
        """
        if not in_forks and os.getpid() != self._pid:
            return
        for name, value in self._wanted.items():
            SWITCHES[name].look_again()
            SWITCHES[name](value)


def settings_of(device: str, *, calls_sdpa: bool) -> TorchSettings:
    """Return torch's settings of this process, as they are now."""
    return TorchSettings(
        threads=torch.get_num_threads(),
        cudnn="benchmark" if cudnn.benchmark else "default",
        matmul_precision=matmul_precision(device),
        flush_denormal=_flushes_denormals(),
        deterministic_algorithms=(
            torch.are_deterministic_algorithms_enabled() or cudnn.deterministic
        ),
        anomaly_detection=torch.is_anomaly_enabled(),
        autograd_profiler=bool(torch.autograd._profiler_enabled()),  # type: ignore[attr-defined]  # noqa: SLF001
        attention=attention() if calls_sdpa else None,
    )


def _flushes_denormals() -> bool:
    """Return whether this thread's arithmetic treats denormal numbers as 0.

    torch can set this mode but has no function that reads it, so a product is computed.
    """
    return float(torch.tensor([1e-310], dtype=torch.float64) * 1) == 0.0


Name = tuple[Callable[[], Any], Callable[[Any], object]]


@dataclass(eq=False)
class Switch:
    """Sets what a knob's value stands for, or returns to what the program has set.

    A name that says so already is not written, because some names set others as well. A name that
    torch cannot read, as after a mix of older and newer ones, is left alone.

    Attributes:
        names: How each of torch's settings is read and written.
        chosen: Returns their values, from the knob's value and what the program has set.
    """

    names: Sequence[Name]
    chosen: Callable[[KnobValue, tuple[Any, ...]], tuple[Any, ...]]
    _own: tuple[Any, ...] | None = field(default=None, init=False)
    _set: tuple[Any, ...] | None = field(default=None, init=False)

    def __call__(self, value: KnobValue) -> None:
        """Set a value of the knob."""
        if self._own is None:
            self._own = self.read()
        for (read, write), wanted in zip(self.names, self.chosen(value, self._own), strict=True):
            if wanted is not None and _told(read) != wanted:
                write(wanted)
        self._set = self.read()

    def look_again(self) -> None:
        """Remember values that the program has set since this switch was last set."""
        if self._set is not None and (now := self.read()) != self._set:
            self._own = now

    def read(self) -> tuple[Any, ...]:
        """Return the present values; None for what torch does not tell."""
        return tuple(_told(read) for read, _ in self.names)


def _told(read: Callable[[], Any]) -> Any:
    try:
        return read()
    except RuntimeError:
        return None


class _Threads(Switch):
    """Sets the threads of operators; in a forked process never more than the program itself has.

    Threads do not survive a fork. If they have worked before it, GNU OpenMP waits for them forever
    in the new process. Programs that compute in forked processes therefore set one thread.
    """

    def __init__(self) -> None:
        self._most: int | None = None  # in a forked process
        super().__init__([(torch.get_num_threads, torch.set_num_threads)], self._at_most)
        os.register_at_fork(after_in_child=self._forked)

    def _at_most(self, threads: Any, _own: tuple[Any, ...]) -> tuple[Any, ...]:
        return (threads if self._most is None else min(threads, self._most),)

    def _forked(self) -> None:
        """Remember the threads that the program had at the fork, or would have had."""
        self.look_again()
        now = torch.get_num_threads()
        (self._most,) = self._own or (now,)
        if now > self._most:
            torch.set_num_threads(self._most)


# Before torch 2.9, fp32 has the older names alone
HAS_NEWER_NAMES = hasattr(mkldnn, "matmul")


def matmul_precision(device: str) -> str:
    """Return the precision of fp32 matrix products: ``highest``, ``high`` or ``medium``.

    torch's own function raises an error after a program has used both the older and the newer names
    of this setting, such as ``set_float32_matmul_precision("medium")`` and then
    ``cuda.matmul.allow_tf32 = True``. The setting of the device is read instead.
    """
    if not HAS_NEWER_NAMES:
        return torch.get_float32_matmul_precision()
    name = (cuda if device == "cuda" else mkldnn).matmul.fp32_precision
    return {"bf16": "medium", "tf32": "high"}.get(name, "highest")


def _attribute(owner: Any, name: str) -> Name:
    return partial(getattr, owner, name), partial(setattr, owner, name)


def _newer_name(
    backend: Any, operators: str, values: Mapping[str, Any]
) -> Mapping[Name, Mapping[str, Any]]:
    if not HAS_NEWER_NAMES:
        return {}
    return {_attribute(getattr(backend, operators), "fp32_precision"): values}


# The names by which torch keeps whether CUDA may compute fp32 in TF32, with their values by that of
# ``precision``; others leave them as the program has them. Older names first, as they set the newer
# ones too (torch's aten/src/ATen/Context.cpp).
TF32_NAMES: Mapping[Name, Mapping[str, Any]] = {
    _attribute(cuda.matmul, "allow_tf32"): {"fp32": False, "tf32": True},
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision): {
        "fp32": "highest",
        "tf32": "high",
    },
    **_newer_name(cuda, "matmul", {"fp32": "ieee", "tf32": "tf32"}),
    _attribute(cudnn, "allow_tf32"): {"tf32": True},
    **_newer_name(cudnn, "conv", {"tf32": "tf32"}),
    **_newer_name(cudnn, "rnn", {"tf32": "tf32"}),
}


def _tf32(precision: KnobValue, own: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(
        before if before is None else values.get(str(precision), before)
        for values, before in zip(TF32_NAMES.values(), own, strict=True)
    )


SDPA_BACKENDS: Mapping[str, Name] = {
    "flash": (cuda.flash_sdp_enabled, cuda.enable_flash_sdp),
    "efficient": (cuda.mem_efficient_sdp_enabled, cuda.enable_mem_efficient_sdp),
    "math": (cuda.math_sdp_enabled, cuda.enable_math_sdp),
    "cudnn": (cuda.cudnn_sdp_enabled, cuda.enable_cudnn_sdp),
}


def attention(enabled: tuple[bool, ...] | None = None) -> str:
    """Return the attention backend that is enabled; ``auto`` unless exactly one is.

    Args:
        enabled: Whether each of SDPA_BACKENDS is enabled; None reads torch's present settings.
    """
    if enabled is None:
        enabled = tuple(is_on() for is_on, _ in SDPA_BACKENDS.values())
    names = [name for name, is_on in zip(SDPA_BACKENDS, enabled, strict=True) if is_on]
    return names[0] if len(names) == 1 else "auto"


def _backends(value: KnobValue, own: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return which backends are enabled: one, all of them, or what the program had.

    ``math`` stays enabled together with a chosen backend, because torch needs it for calls that a
    fused backend cannot compute, such as an evaluation in fp32 or another kind of mask.
    """
    if value == attention(own):
        return own
    return tuple(value in {"auto", name} or name == "math" for name in SDPA_BACKENDS)


def _cpu_products(precision: KnobValue, own: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return whether fp32 products may use bf16 instructions of a CPU."""
    if precision == "fp32":
        return ("highest",) if own == ("medium",) else own
    return ("medium",) if precision == "medium" else own


SWITCHES: Mapping[str, Switch] = {
    "threads": _Threads(),
    "cudnn": Switch([_attribute(cudnn, "benchmark")], lambda how, _: (how == "benchmark",)),
    "tf32": Switch([*TF32_NAMES], _tf32),
    "medium": Switch(
        [(partial(matmul_precision, "cpu"), torch.set_float32_matmul_precision)], _cpu_products
    ),
    "flush_denormal": Switch(
        [(_flushes_denormals, torch.set_flush_denormal)], lambda flushes, _: (flushes,)
    ),
    "attention": Switch([*SDPA_BACKENDS.values()], _backends),
}


GRADIENT_READERS: Sequence[tuple[type, str]] = (
    (torch.Tensor, "register_hook"),
    (torch.Tensor, "retain_grad"),
    (nn.Module, "register_backward_hook"),
)


class CallDetectionSeam(Seam):
    """Notes calls in the program's first, untouched steps.

    Attributes:
        calls_sdpa: Whether ``scaled_dot_product_attention`` was called.
        reads_gradients: The function by which the program has read gradients within the backward
            pass, such as ``register_hook``; empty if it has not.
    """

    def __init__(self) -> None:
        self.calls_sdpa = False
        self.reads_gradients = ""
        self._patches = Patches()

    def install(self) -> None:
        """Begin to note calls."""
        self._patches.wrap(functional, "scaled_dot_product_attention", self._attends)
        for owner, name in GRADIENT_READERS:
            self._patches.wrap(owner, name, partial(self._reads, name))

    def _attends(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self.calls_sdpa = True
        return original(*args, **kwargs)

    def _reads(
        self, name: str, original: Callable[..., Any], target: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if not any(map(_is_torchs, args)):  # FSDP hooks the outputs of models
            self.reads_gradients = name
        return original(target, *args, **kwargs)


def _is_torchs(hook: Any) -> bool:
    function = getattr(hook, "func", hook)
    return str(getattr(function, "__module__", "")).startswith("torch.")
