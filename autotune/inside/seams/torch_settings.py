"""torch's settings that hold for the whole process, by the names of their knobs.

Each switch sets a value in torch. Those whose knob can return to the program's own value remember
it, because a search changes them several times in one process.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.backends import cuda, cudnn, mkldnn
from torch.backends.cudnn import rnn
from torch.nn import functional

from autotune.inside.hubs.patches import Patches, Seam
from autotune.program.config import KnobValue
from autotune.program.profile import TorchSettings


class TorchSettingsSeam(Seam):
    """Sets process-wide settings of torch, and sets them again after the program's set-up code.

    ``Steering`` calls ``switch()`` on the main thread, before the program starts or between two
    steps. ``SeamSet`` calls ``settle()`` on the thread that trains, when an optimizer is built and
    before the first step: cuDNN keeps what it chose for the shapes of the first call, and what a
    program sets after a trial call of its model counts as well.
    """

    def __init__(self) -> None:
        self._wanted: dict[str, KnobValue] = {}
        self._patches = Patches()

    @property
    def is_needed(self) -> bool:
        """Whether any setting was requested."""
        return bool(self._wanted)

    def switch(self, name: str, value: KnobValue) -> None:
        """Set a setting now, and again when the program's set-up is over.

        Args:
            name: The setting's knob: ``interop_threads`` or a key of SWITCHES; ``tf32`` and
                ``medium`` belong to ``precision``.
            value: A value of that knob.
        """
        if name == "interop_threads":
            # torch allows this once in a process and raises an error the second time, so the
            # program's call is replaced by a function that does nothing.
            torch.set_num_interop_threads(int(value))
            self._patches.replace(torch, "set_num_interop_threads", lambda _threads: None)
            return
        self._wanted[name] = value
        SWITCHES[name](value)

    def settle(self) -> None:
        """Set the requested values again, because the program's set-up code may have changed them.

        Switches that can return to the program's values remember the new ones.
        """
        for name, value in self._wanted.items():
            switch = SWITCHES[name]
            if isinstance(switch, _Remembering):
                switch.look_again()
            switch(value)


def settings_of(device: str, *, calls_sdpa: bool) -> TorchSettings:
    """Return torch's settings of this process, as they are now."""
    return TorchSettings(
        threads=torch.get_num_threads(),
        interop_threads=torch.get_num_interop_threads(),
        cudnn="benchmark" if cudnn.benchmark else "default",
        matmul_precision=matmul_precision(device),
        flush_denormal=_flushes_denormals(),
        deterministic_algorithms=(
            torch.are_deterministic_algorithms_enabled() or cudnn.deterministic
        ),
        anomaly_detection=torch.is_anomaly_enabled(),
        autograd_profiler=_profiles(),
        attention=attention() if calls_sdpa else None,
    )


def _flushes_denormals() -> bool:
    """Return whether this thread's arithmetic treats denormal numbers as 0.

    torch can set this mode but has no function that reads it, so a product is computed.
    """
    return float(torch.tensor([1e-310], dtype=torch.float64) * 1) == 0.0


def _profiles() -> bool:
    return bool(torch.autograd._profiler_enabled())  # type: ignore[attr-defined]  # noqa: SLF001


class _Remembering(ABC):
    """A switch that can return to the program's own values.

    A subclass says how values are read and written, and which values a knob's value stands for.
    """

    def __init__(self) -> None:
        self._own: tuple[Any, ...] | None = None
        self._set: tuple[Any, ...] | None = None

    def __call__(self, value: KnobValue) -> None:
        if self._own is None:
            self._own = self.read()
        self.write(*self.chosen(value, self._own))
        self._set = self.read()

    def look_again(self) -> None:
        """Remember values that the program has set since this switch was last set."""
        if self._set is not None and (now := self.read()) != self._set:
            self._own = now

    @abstractmethod
    def read(self) -> tuple[Any, ...]: ...

    @abstractmethod
    def write(self, *values: Any) -> None: ...

    @abstractmethod
    def chosen(self, value: KnobValue, own: tuple[Any, ...]) -> tuple[Any, ...]: ...


class _Threads(_Remembering):
    """Sets the threads of operators; in a forked process never more than the program itself has.

    Threads do not survive a fork. If they have worked before it, GNU OpenMP waits for them forever
    in the new process. Programs that compute in forked processes therefore set one thread.
    """

    def __init__(self) -> None:
        super().__init__()
        self._most: int | None = None  # in a forked process
        os.register_at_fork(after_in_child=self._forked)

    def read(self) -> tuple[Any, ...]:
        return (torch.get_num_threads(),)

    def write(self, *values: Any) -> None:
        (threads,) = values
        torch.set_num_threads(threads if self._most is None else min(threads, self._most))

    def chosen(self, value: KnobValue, own: tuple[Any, ...]) -> tuple[Any, ...]:  # noqa: ARG002
        return (value,)

    def _forked(self) -> None:
        """Remember the threads that the program had at the fork, or would have had."""
        self.look_again()
        (now,) = self.read()
        (self._most,) = self._own or (now,)
        if now > self._most:
            torch.set_num_threads(self._most)


def matmul_precision(device: str) -> str:
    """Return the precision of fp32 matrix products: ``highest``, ``high`` or ``medium``.

    torch's own function raises an error after a program has used both the older and the newer names
    of this setting, such as ``set_float32_matmul_precision("medium")`` and then
    ``cuda.matmul.allow_tf32 = True``. The setting of the device is read instead.
    """
    name = (cuda if device == "cuda" else mkldnn).matmul.fp32_precision
    return {"bf16": "medium", "tf32": "high"}.get(name, "highest")


@dataclass(frozen=True)
class _Tf32Name:
    """One of the names by which torch keeps whether CUDA may compute fp32 in TF32.

    Attributes:
        get: Returns its value; torch raises an error after a mix of older and newer names.
        put: Sets it, and newer names with it.
        by_precision: Its value by that of ``precision``; others leave it as the program has it.
    """

    get: Callable[[], Any]
    put: Callable[[Any], object]
    by_precision: Mapping[str, Any]

    @classmethod
    def of(cls, owner: Any, name: str, **by_precision: Any) -> _Tf32Name:
        return cls(partial(getattr, owner, name), partial(setattr, owner, name), by_precision)

    def read(self) -> Any:
        """Return its value; None where torch does not tell."""
        try:
            return self.get()
        except RuntimeError:
            return None


# Older names first, as they set the newer ones too (torch's aten/src/ATen/Context.cpp).
TF32_NAMES = (
    _Tf32Name.of(cuda.matmul, "allow_tf32", fp32=False, tf32=True),
    _Tf32Name(
        torch.get_float32_matmul_precision,
        torch.set_float32_matmul_precision,
        {"fp32": "highest", "tf32": "high"},
    ),
    _Tf32Name.of(cuda.matmul, "fp32_precision", fp32="ieee", tf32="tf32"),
    _Tf32Name.of(cudnn, "allow_tf32", tf32=True),
    _Tf32Name.of(cudnn.conv, "fp32_precision", tf32="tf32"),  # type: ignore[attr-defined]
    _Tf32Name.of(rnn, "fp32_precision", tf32="tf32"),
)


class _Tf32(_Remembering):
    """Turns TF32 on CUDA on or off, or returns to what the program set.

    Names that the program could read stay readable. A name that says so already is not written:
    ``set_float32_matmul_precision`` sets the CPU's precision as well.
    """

    def read(self) -> tuple[Any, ...]:
        return tuple(name.read() for name in TF32_NAMES)

    def write(self, *values: Any) -> None:
        for name, value in zip(TF32_NAMES, values, strict=True):
            if value is not None and name.read() != value:
                name.put(value)

    def chosen(self, value: KnobValue, own: tuple[Any, ...]) -> tuple[Any, ...]:
        return tuple(
            before if before is None else name.by_precision.get(str(value), before)
            for name, before in zip(TF32_NAMES, own, strict=True)
        )


SDPA_BACKENDS: Mapping[str, tuple[Callable[[], bool], Callable[[bool], None]]] = {
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
    enabled = _Attention().read() if enabled is None else enabled
    names = [name for name, is_on in zip(SDPA_BACKENDS, enabled, strict=True) if is_on]
    return names[0] if len(names) == 1 else "auto"


class _Attention(_Remembering):
    """Enables one backend of scaled dot-product attention, all of them, or what the program had.

    ``math`` stays enabled together with a chosen backend, because torch needs it for calls that a
    fused backend cannot compute, such as an evaluation in fp32 or another kind of mask.
    """

    def read(self) -> tuple[Any, ...]:
        return tuple(is_on() for is_on, _ in SDPA_BACKENDS.values())

    def write(self, *values: Any) -> None:
        for (_, enable), value in zip(SDPA_BACKENDS.values(), values, strict=True):
            enable(value)

    def chosen(self, value: KnobValue, own: tuple[Any, ...]) -> tuple[Any, ...]:
        if value == attention(own):
            return own
        return tuple(value in {"auto", name} or name == "math" for name in SDPA_BACKENDS)


class _Medium(_Remembering):
    """Lets fp32 products use bf16 instructions of a CPU, or returns to what the program set."""

    def read(self) -> tuple[Any, ...]:
        return (matmul_precision("cpu"),)

    def write(self, *values: Any) -> None:
        if values != self.read():
            torch.set_float32_matmul_precision(*values)

    def chosen(self, value: KnobValue, own: tuple[Any, ...]) -> tuple[Any, ...]:
        if value == "fp32":
            return ("highest",) if own == ("medium",) else own
        return ("medium",) if value == "medium" else own


def _set_cudnn(how: KnobValue) -> None:
    cudnn.benchmark = how == "benchmark"


SWITCHES: Mapping[str, Callable[[Any], object]] = {
    "threads": _Threads(),
    "cudnn": _set_cudnn,
    "tf32": _Tf32(),
    "medium": _Medium(),
    "flush_denormal": torch.set_flush_denormal,
    "attention": _Attention(),
}


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
        original, seam = functional.scaled_dot_product_attention, self

        def call(*args: Any, **kwargs: Any) -> Any:
            seam.calls_sdpa = True
            return original(*args, **kwargs)

        self._patches.replace(functional, "scaled_dot_product_attention", call)
        self._note_reading(torch.Tensor, "register_hook")
        self._note_reading(torch.Tensor, "retain_grad")
        self._note_reading(nn.Module, "register_backward_hook")

    def _note_reading(self, owner: type, name: str) -> None:
        original, seam = getattr(owner, name), self

        def call(target: Any, *args: Any, **kwargs: Any) -> Any:
            if not any(map(_is_torchs, args)):  # FSDP hooks the outputs of models
                seam.reads_gradients = name
            return original(target, *args, **kwargs)

        self._patches.replace(owner, name, call)


def _is_torchs(hook: Any) -> bool:
    function = getattr(hook, "func", hook)
    return str(getattr(function, "__module__", "")).startswith("torch.")
