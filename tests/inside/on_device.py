"""What autotune's seams do to torch on a device, in one process without a program.

Each part is a function of the device's type that returns what it finds: ``tests/test_gpu.py`` and
``benchmarks/gpu`` run them. Beside a CPU, ``meta`` stands for a device to which data is copied.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from statistics import fmean
from threading import Thread
from time import perf_counter

import torch
from torch import Tensor, nn
from torch.amp import GradScaler
from torch.optim import SGD, Adam, AdamW, Optimizer
from torch.utils.data import DataLoader, TensorDataset

from autotune.inside.listener import Listener
from autotune.inside.readings import Readings
from autotune.inside.seam_set import SeamSet
from autotune.inside.seams.parts import Part, PartsClock, PartsSeam
from autotune.inside.seams.torch_settings import HAS_NEWER_NAMES, SDPA_BACKENDS, SWITCHES
from autotune.inside.steering import Steering
from autotune.inside.turns import Edges
from autotune.knobs.torch_flags import Attention
from autotune.machine import hardware
from autotune.machine.probes.torch_memory import is_device_full
from autotune.measurement.outcome import Outcome
from autotune.program.applied_config import AppliedConfig, ProgramTraits
from autotune.program.config import Config, KnobValue
from autotune.rig.failures import from_exception
from autotune.rig.wire import Ended
from benchmarks.gpu.bench import Finding, Status, verdict

MIB = 1 << 20
WRITTEN: Mapping[str, KnobValue] = {
    "attention": "auto",
    "memory_format": "contiguous",
    "optimizer": "for-loop",
    "pinning": "off",
    "precision": "fp32",
}
SWITCHES_AT = {5: "foreach", 10: "fused", 15: "for-loop"}
OVERFLOWS_AT = 4
SUM_OFF = 0.05  # what the parts of a step may miss of it
SLACK = 32 * MIB  # for segments, which are not cut to size
COPY_S = 0.001  # the host's time for a copy that it does not wait for; 150 MB take 6 ms by PCIe 4
Switch = Callable[..., None]


@contextmanager
def steered(device: str, **changes: KnobValue) -> Iterator[tuple[SeamSet, Switch]]:
    """Install the seams as a rig does; give a function that switches to other values, live."""
    seams, written = SeamSet(Listener(), None), Config(WRITTEN)
    steering, traits, now = Steering(seams), ProgramTraits(device), None

    def switch(**values: KnobValue) -> None:
        nonlocal now
        applied = AppliedConfig(written.replace(**values), written, traits)
        steering.apply(applied, since=now)
        now = applied

    switch(**changes)
    seams.install()
    try:
        yield seams, switch
    finally:
        switch()
        seams.remove()


def facts(device: str) -> Finding:
    """GPUs as NVML tells of them are those of torch, and answer as the fakes of tests do."""
    count = torch.cuda.device_count()
    real = [torch.cuda.get_device_properties(index) for index in range(count)]
    told = hardware.detect().gpus
    wrong = [
        one.name
        for gpu, one in zip(told, real, strict=False)
        if gpu.name != one.name
        or gpu.compute_capability not in {(one.major, one.minor), None}
        # torch leaves out what the driver keeps to itself
        or abs((gpu.memory_bytes or 0) - one.total_memory) > 0.05 * one.total_memory
    ]
    if device == "cuda":
        from tests.gpu_fakes import differences_from_a_device  # with pytest, which may be missing

        if not told:
            return Finding(Status.SKIP, "NVML tells of no GPU")
        wrong += differences_from_a_device(0)
    text = f"{len(told)} GPUs are told, torch sees {count}; differences: {wrong or 'none'}"
    return verdict(text, holds=len(told) == count and not wrong and (device == "cpu" or bool(real)))


def products_round(device: str) -> Finding:
    """TF32 comes and goes, whatever names of torch's the program itself has used."""
    matmul, newer = torch.backends.cuda.matmul, "fp32_precision" if HAS_NEWER_NAMES else ""
    sets: dict[str, Callable[[], object]] = {
        "none": lambda: None,
        "an older name": lambda: setattr(matmul, "allow_tf32", False),
        "one for all": lambda: torch.set_float32_matmul_precision("highest"),
    }
    if newer:
        sets["a newer after an older name"] = lambda: setattr(matmul, newer, "ieee")
    a = torch.randn(512, 512, device=device)
    exact = a.double() @ a.double()
    errors: dict[str, list[float]] = {"fp32": [], "tf32": []}
    wrong = []
    for name, set_it in sets.items():
        set_it()
        with steered(device) as (seams, _):
            SWITCHES["tf32"].look_again()
            for precision in ("tf32", "fp32"):
                seams.process.switch("tf32", precision)
                errors[precision].append(float((a @ a - exact).norm() / exact.norm()))
                is_tf32 = getattr(matmul, newer) == "tf32" if newer else matmul.allow_tf32
                if is_tf32 != (precision == "tf32"):
                    wrong.append(f"{precision} after {name}")
    torch.set_float32_matmul_precision("highest")
    if newer:
        setattr(matmul, newer, "none")
    rounds = device == "cuda" and torch.cuda.get_device_capability() >= (8, 0)
    fine, coarse = max(errors["fp32"]), min(errors["tf32"])
    text = f"products err by {fine:.1g} in fp32, by {coarse:.1g} in TF32; {wrong or 'none'} wrong"
    return verdict(text, holds=not wrong and (not rounds or 10 * fine < coarse))


def optimizers_go_on(device: str) -> Finding:
    """An optimizer that is switched live ends where one does that was built so."""
    makes: Mapping[str, Callable[..., Optimizer]] = {
        "Adam": partial(Adam, lr=0.01),
        "AdamW": partial(AdamW, lr=0.01),
        "SGD": partial(SGD, lr=0.01, momentum=0.9),
    }
    ways: Mapping[str, Mapping[str, bool]] = {
        "for-loop": {"foreach": False},
        "foreach": {"foreach": True},
        "fused": {"fused": True},
    }

    def trained(make: Callable[..., Optimizer], *, scales: bool, lives: bool) -> Tensor:
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(16, 64), nn.Tanh(), nn.Linear(64, 1)).to(device)
        x, scaler = torch.randn(64, 16, device=device), GradScaler(device, enabled=scales)
        with steered(device) as (_, switch):
            optimizer = make(model.parameters())
            for step in range(20):
                if lives and step in SWITCHES_AT:
                    switch(optimizer=SWITCHES_AT[step])
                optimizer.zero_grad()
                scaler.scale(model(x).square().mean()).backward()
                scaler.step(optimizer)
                scaler.update()
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    worst = {
        f"{name}, {'scaled' if scales else 'as it is'}": max(
            float((live - trained(partial(make, **way), scales=scales, lives=False)).abs().max())
            for way in ways.values()
        )
        for name, make in makes.items()
        for scales in (False, True)
        for live in [trained(make, scales=scales, lives=True)]
    }
    text = f"after 20 steps, weights of switched optimizers differ by {max(worst.values()):.1g}"
    return verdict(text, worst, holds=max(worst.values()) < 1e-4)


def layout_returns(device: str) -> Finding:
    """NHWC reaches weights, Adam's state and inputs, and goes again; the model's result stays."""
    model, x = _convolutions(device)
    told, inputs = [], list[bool]()
    next(model.children()).register_forward_pre_hook(
        lambda _, args: inputs.append(_is_nhwc(args[0]))
    )
    with steered(device) as (_, switch):
        optimizer = Adam(model.parameters(), lr=1e-5)
        before = _step(model, optimizer, x)
        weight = next(model.parameters())
        for layout in ("channels_last", "contiguous"):
            switch(memory_format=layout)
            told.append((_is_nhwc(weight), _is_nhwc(optimizer.state[weight]["exp_avg"])))
            after = _step(model, optimizer, x)
    off = float((after - before).abs().max() / before.abs().max())
    text = f"weights and state in NHWC: {told}, inputs {inputs}; outputs move by {off:.1g}"
    is_right = told == [(True,) * 2, (False,) * 2] and inputs == [False, True, False]
    return verdict(text, holds=is_right and off < 0.02)


def overflow_is_skipped(device: str) -> Finding:
    """fp16 gradients that overflow make no step, halve the scale, and the next ones train."""
    torch.manual_seed(0)
    model = nn.Linear(16, 1).to(device)
    x = torch.randn(64, 16, device=device)
    moved, scales = [], []
    with steered(device, precision="fp16") as (seams, _):
        optimizer = SGD(model.parameters(), lr=0.01)
        for step in range(8):
            before = model.weight.detach().clone()
            optimizer.zero_grad()
            height = 1e4 if step == OVERFLOWS_AT else 1.0
            (model(height * x).square().mean() / 64).backward()
            optimizer.step()
            moved.append(not torch.equal(before, model.weight))
            scales.append(seams.steps.scaling.scale)
    is_finite = bool(torch.isfinite(model.weight).all())
    text = f"steps of fp16 that moved the weights: {moved}; scales {scales}"
    wanted = [step != OVERFLOWS_AT for step in range(8)]
    return verdict(text, holds=is_finite and moved == wanted and scales[-1] == scales[0] / 2)


def copies_run_ahead(device: str) -> Finding:
    """The host does not wait for copies of what a loader has pinned; compiled code copies too."""
    target, samples = ("cuda", 64) if device == "cuda" else ("meta", 4)
    data = TensorDataset(torch.randn(samples, 150 * MIB // 4 // 64))
    with steered(device, pinning="non-blocking"):
        (batch,) = next(iter(DataLoader(data, samples, pin_memory=device == "cuda")))
        batch.to(target)  # memory is taken
        Edges([torch.device(device)]).settle()
        began = perf_counter()
        copied = batch.to(target)
        took_s = perf_counter() - began
        double = torch.compile(lambda x: x.to(device) * 2, backend="aot_eager", fullgraph=True)
        is_right = torch.equal(double(batch).cpu(), batch * 2) and copied.shape == batch.shape
    text = f"a copy of {batch.nbytes / MIB:.0f} MiB keeps the host for {1000 * took_s:.2f} ms"
    return verdict(text, holds=is_right and (took_s < COPY_S or device == "cpu"))


def attention_agrees(device: str) -> Finding:
    """Each kernel of attention computes what the plain one does, forward and backward."""
    torch.manual_seed(0)
    q, k, v = torch.randn(3, 4, 4, 128, 64, device=device, dtype=torch.bfloat16)
    inputs = [t.detach().requires_grad_() for t in (q, k, v)]
    results, wrong = {}, []

    def enabled() -> set[str]:
        return {name for name, (is_on, _) in SDPA_BACKENDS.items() if is_on()}

    own = enabled()
    with steered(device) as (_, switch):
        for kernel in Attention.choices:
            switch(attention=kernel)
            if enabled() != (own if kernel == "auto" else {kernel, "math"}):
                wrong.append(kernel)
            output = nn.functional.scaled_dot_product_attention(*inputs)
            given = torch.autograd.grad(output.float().square().sum(), inputs)
            results[kernel] = torch.stack(given).float()
    plain = results["math"]
    off = {k: float((r - plain).abs().max() / plain.abs().max()) for k, r in results.items()}
    text = (
        f"gradients of attention differ from the plain kernel's by {max(off.values()):.1g}; "
        f"{', '.join(wrong) or 'none'} not chosen"
    )
    return verdict(text, off, holds=not wrong and enabled() == own and max(off.values()) < 0.05)


def parts_add_up(device: str) -> Finding:
    """The parts of a step are the whole of it."""
    model, x = _convolutions(device, 16 if device == "cpu" else 2048)  # some ms for a GPU
    edges = Edges([torch.device(device)])
    clock, marks = PartsClock(edges), []
    with steered(device) as (seams, _):
        optimizer = SGD(model.parameters(), lr=1e-4)
        _step(model, optimizer, x)
        parts = PartsSeam(clock, seams.model.forward, seams.hubs)
        parts.install()
        for _ in range(10):
            begin = edges.mark()
            clock.start()
            _step(model, optimizer, x)
            clock.stop(keep=True)
            marks.append((begin, edges.mark()))
        parts.remove()
    split = clock.split()
    assert split is not None, "ten steps were kept"
    edges.settle()
    whole_s = fmean(edges.seconds_between(*both) for both in marks)
    parts_s = {str(part): getattr(split, f"{part}_s") for part in Part}
    share = sum(parts_s.values()) / whole_s
    text = f"the parts of a step of {1000 * whole_s:.1f} ms add up to {share:.0%} of it"
    computes = parts_s[Part.COMPUTE] > 0 and parts_s[Part.OPTIMIZER] > 0
    return verdict(text, parts_s, holds=computes and abs(share - 1) <= SUM_OFF)


def peaks_are_of_one_config(device: str) -> Finding:
    """A peak of memory is that of its own config, also where segments grow."""
    readings, peaks, taken = Readings(), [], []
    readings.trains_on(device)
    for workers, size, grows in ((0, 1024, False), (1, 64, False), (2, 256, True)):
        _expand_segments(enabled=grows)
        readings.begin(
            [AppliedConfig(Config({"workers": workers}), Config({}), ProgramTraits(device))]
        )
        before = readings.activity()
        held = torch.empty(size * MIB, dtype=torch.uint8, device=device)
        taken.append(readings.activity() - before)
        del held
        peaks.append(readings.taken((), 0, None).memory.device_reserved_bytes)
    _expand_segments(enabled=False)
    text = f"peaks of 1024, 64 and (in segments that grow) 256 MiB: {peaks}, taken {taken}"
    if device == "cpu":
        return verdict(text, holds=peaks == [None] * 3 and taken == [0] * 3)
    large, small, grown = (peak or 0 for peak in peaks)  # with what the parts before hold
    is_right = abs(large - small - 960 * MIB) <= SLACK and abs(grown - small - 192 * MIB) <= SLACK
    return verdict(text, holds=is_right and min(taken) > 0)


def out_of_memory_is_told(device: str) -> Finding:
    """What torch, cuDNN and cuBLAS raise where the device is full counts as out of memory."""
    model, x = _convolutions(device)
    a = torch.randn(512, 512, device=device)
    raised, rest = {}, []

    def note(name: str, work: Callable[[], object]) -> None:
        try:
            work()
        except (MemoryError, RuntimeError) as error:
            raised[name] = f"{type(error).__name__}: {error}"

    note("torch", lambda: torch.empty(1 << 50, dtype=torch.uint8, device=device))
    size = torch.cuda.mem_get_info()[0] if device == "cuda" else 0
    while size >= MIB:
        try:
            rest.append(torch.empty(size, dtype=torch.uint8, device=device))
        except torch.OutOfMemoryError:
            size //= 2
    for name, work in (("cuDNN", lambda: model(x)), ("cuBLAS", lambda: a @ a)):
        thread = Thread(target=note, args=(name, work))  # which needs handles of its own
        thread.start()
        thread.join()
    is_full = is_device_full()
    del rest
    told = {
        name: from_exception(Ended(9, text, "", 1, is_device_full=is_full)).outcome
        for name, text in raised.items()
    }
    text = f"full devices: {', '.join(f'{n} {o}' for n, o in told.items())}"
    full = {Outcome.OUT_OF_MEMORY, Outcome.HOST_OUT_OF_MEMORY}
    return verdict(text, raised, holds="torch" in told and set(told.values()) <= full)


PARTS = (
    facts,
    products_round,
    optimizers_go_on,
    layout_returns,
    overflow_is_skipped,
    copies_run_ahead,
    attention_agrees,
    parts_add_up,
    peaks_are_of_one_config,
    out_of_memory_is_told,
)


def _convolutions(device: str, samples: int = 16) -> tuple[nn.Module, Tensor]:
    torch.manual_seed(0)
    layers = nn.Conv2d(8, 32, 3), nn.ReLU(), nn.Conv2d(32, 8, 3)
    return nn.Sequential(*layers).to(device), torch.randn(samples, 8, 32, 32, device=device)


def _is_nhwc(tensor: Tensor) -> bool:
    return tensor.is_contiguous(memory_format=torch.channels_last)


def _step(model: nn.Module, optimizer: Optimizer, x: Tensor) -> Tensor:
    output: Tensor = model(x)
    optimizer.zero_grad()
    output.square().mean().backward()
    optimizer.step()
    return output.detach().clone()


def _expand_segments(*, enabled: bool) -> None:
    newer = getattr(torch._C, "_accelerator_setAllocatorSettings", None)
    (newer or torch.cuda.memory._set_allocator_settings)(f"expandable_segments:{enabled}")
