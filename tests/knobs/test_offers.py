"""What each knob offers where: the values worth trying, and why there are none."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from autotune.errors import UsageError
from autotune.knobs import Scope, registry
from autotune.knobs.base import Here
from autotune.machine.hardware import Hardware
from autotune.program.config import Config, KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.profile import OptimizerFacts, Profile
from autotune.program.program import LaunchPlan
from tests.made import (
    A100,
    H100,
    MACHINES,
    V100,
    make_hardware,
    make_loader,
    make_profile,
    make_space,
    profile_with,
)
from tests.readings import unused

CUDA = make_profile(device="cuda")


def values(knob: str, hardware: Hardware, profile: Profile) -> tuple[KnobValue, ...]:
    offer = registry()[knob].domain(Here(hardware, profile))
    assert isinstance(offer, Domain), offer
    return offer.values


def reason(knob: str, hardware: Hardware, profile: Profile) -> str:
    offer = registry()[knob].domain(Here(hardware, profile))
    assert isinstance(offer, NotOffered), offer
    return offer.reason


# --- precision ------------------------------------------------------------------------------------


@pytest.mark.parametrize("gpus", [(A100,), (H100,), (A100, H100)])
def test_bf16_is_offered_from_ampere_on(gpus: tuple[object, ...]) -> None:
    expected = ("fp32", "tf32", "bf16", "fp16")
    assert values("precision", make_hardware(gpus=gpus), CUDA) == expected


@pytest.mark.parametrize("gpus", [(V100,), (A100, V100)])
def test_bf16_is_not_offered_where_a_gpu_would_emulate_it(gpus: tuple[object, ...]) -> None:
    hardware = make_hardware(gpus=gpus)
    assert values("precision", hardware, CUDA) == ("fp32", "fp16")
    refused = registry()["precision"].refusal("bf16", Here(hardware, CUDA))
    assert refused is not None
    assert "8.0" in refused


def test_formats_and_kernels_are_those_of_the_gpu_that_the_program_uses() -> None:
    """A V100 beside an A100 decides nothing while the program leaves it alone."""
    profile, hardware = (
        profile_with(CUDA, attention="auto"),
        make_hardware(gpus=(A100, unused(V100))),
    )
    assert "bf16" in values("precision", hardware, CUDA)
    assert registry()["precision"].refusal("bf16", Here(hardware, CUDA)) is None
    assert "flash" in values("attention", hardware, profile)
    other = make_hardware(gpus=(unused(A100), V100))
    assert "bf16" not in values("precision", other, CUDA)
    assert "flash" not in values("attention", other, profile)


def test_bf16_on_the_cpu_needs_the_instructions_whatever_the_gpus_are() -> None:
    assert values("precision", make_hardware(), make_profile()) == ("fp32", "medium", "bf16")
    emulating = make_hardware(cpu_flags=(), gpus=(H100,))
    resolved = make_space(["precision"]).resolve(emulating, make_profile())
    assert "no bf16 instructions" in resolved.refused["precision"]
    assert make_space([]).fix({"precision": "fp32"}).resolve(emulating, make_profile()).fixed
    with pytest.raises(UsageError, match="no bf16 instructions"):
        make_space([]).tune(["precision"]).resolve(emulating, make_profile())


def test_a_program_that_computes_in_emulated_bf16_may_gain_by_fp32() -> None:
    profile = make_profile(autocast="bfloat16")
    space = make_space(["precision"]).resolve(make_hardware(cpu_flags=()), profile)
    assert space.baseline["precision"] == "bf16"
    assert set(space.domains["precision"].values) == {"fp32", "bf16"}


def test_a_program_with_its_own_autocast_starts_from_its_dtype() -> None:
    profile = profile_with(CUDA, autocast="bfloat16")
    assert registry()["precision"].current(profile) == "bf16"
    assert "fp32" in values("precision", MACHINES["H100"], profile)


def test_a_program_with_weights_in_sixteen_bits_keeps_them() -> None:
    profile = profile_with(CUDA, weights_dtype="bfloat16")
    assert "bfloat16" in reason("precision", MACHINES["H100"], profile)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"steps_by_hand": "train.py:7 adds to weights"}, "train.py:7"),
        ({"against_scaling": "the program computes gradients without backward()"}, "without back"),
    ],
)
def test_fp16_is_refused_where_losses_cannot_be_scaled(
    changes: dict[str, object], expected: str
) -> None:
    """Whoever names it; in a program that scales its own losses that is its own business."""
    profile = make_profile(device="cuda", **changes)
    assert values("precision", MACHINES["H100"], profile) == ("fp32", "tf32", "bf16")
    assert expected in reason("precision", MACHINES["V100"], profile)
    refused = registry()["precision"].refusal("fp16", Here(MACHINES["H100"], profile))
    assert refused is not None
    assert expected in refused
    own = profile_with(profile, has_scaler=True)
    assert "fp16" in values("precision", MACHINES["H100"], own)


# --- prefetch factor ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dataset_len", "expected"),
    [(60_000, (2, 4, 8)), (4096, (2, 4, 8)), (4095, (2, 4)), (2000, (2,)), (None, (2, 4, 8))],
)
def test_a_buffer_holds_at_most_an_eighth_of_an_epoch(
    dataset_len: int | None, expected: tuple[int, ...]
) -> None:
    profile = make_profile(loaders=(make_loader(dataset_len=dataset_len),))
    assert values("prefetch_factor", make_hardware(), profile) == expected


# --- batch size -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dataset_len", "expected"),
    [
        (60_000, (64, 128, 256, 512, 1024, 2048)),
        (10_240, (64, 128, 256, 512)),
        (10_239, (64, 128, 256)),
        (4000, (64, 128)),
        (2560, (64, 128)),
        (2559, (64,)),
        (100, (64,)),
        (None, (64, 128, 256, 512, 1024, 2048)),
    ],
)
def test_batch_sizes_stop_where_an_epoch_gets_short(
    dataset_len: int | None, expected: tuple[int, ...]
) -> None:
    """An epoch keeps at least 20 steps; a dataset without a length sets no limit."""
    profile = make_profile(loaders=(make_loader(dataset_len=dataset_len),))
    assert values("batch_size", make_hardware(), profile) == expected


@pytest.mark.parametrize(
    ("loaders", "expected"),
    [
        ((), "without a torch DataLoader"),
        ((make_loader(), make_loader(ordinal=1)), "the program trains from 2 loaders at once"),
        ((make_loader(has_batch_sampler=True, batch_size=None),), "own batch sampler"),
        ((make_loader(batch_size=None),), "batch_size=None"),
    ],
)
def test_a_batch_that_is_not_one_loaders_own_is_left_alone(
    loaders: tuple[object, ...], expected: str
) -> None:
    assert expected in reason("batch_size", make_hardware(), make_profile(loaders=loaders))


# --- loading --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cores", "expected"),
    [(1, (0, 1, 2)), (2, (0, 1, 2)), (4, (0, 1, 2, 4)), (8, (0, 1, 2, 4, 8, 12))],
)
def test_workers_go_up_to_one_and_a_half_times_the_cores(
    cores: int, expected: tuple[int, ...]
) -> None:
    assert values("workers", make_hardware(cpu_quota=cores), make_profile()) == expected


def test_a_large_machine_is_offered_no_more_than_32_workers() -> None:
    assert max(values("workers", make_hardware(cpu_quota=256), make_profile())) == 32


def test_prefetching_is_idle_without_workers() -> None:
    knob = registry()["prefetch_factor"]
    assert not knob.is_active(Config({"workers": 0, "prefetch_factor": 4}))
    assert knob.is_active(Config({"workers": 2, "prefetch_factor": 4}))
    assert knob.is_active(Config({"prefetch_factor": 4}))


def test_without_workers_the_current_prefetching_is_what_workers_would_get() -> None:
    assert registry()["prefetch_factor"].current(make_profile()) == 2
    deep = make_profile(loaders=(make_loader(num_workers=2, prefetch_factor=6),))
    assert registry()["prefetch_factor"].current(deep) == 6


def test_batches_are_pinned_where_there_is_a_device_to_copy_to() -> None:
    assert values("pinning", MACHINES["A100"], CUDA) == ("off", "non-blocking")
    assert "on the CPU" in reason("pinning", MACHINES["A100"], make_profile())
    for changes, own in (
        ({}, "off"),
        ({"loaders": (make_loader(pin_memory=True),)}, "blocking"),
        (
            {"loaders": (make_loader(pin_memory=True),), "copies_without_blocking": True},
            "non-blocking",
        ),
    ):
        assert registry()["pinning"].current(profile_with(CUDA, **changes)) == own


@pytest.mark.parametrize(
    "knob",
    [
        "workers",
        "prefetch_factor",
        "in_order",
        "worker_start_method",
        "worker_threads",
        "pinning",
    ],
)
def test_a_program_without_a_loader_has_no_loader_knobs(knob: str) -> None:
    profile = make_profile(device="cuda", loaders=())
    assert "without a torch DataLoader" in reason(knob, MACHINES["A100"], profile)


# --- compute --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cores", "expected"),
    [(2, (1, 2)), (3, (1, 2, 3)), (8, (1, 2, 3, 4, 7, 8)), (16, (1, 2, 3, 4, 7, 8, 15, 16))],
)
def test_threads_are_the_cores_one_less_and_halvings(cores: int, expected: tuple[int, ...]) -> None:
    assert values("threads", make_hardware(cpu_quota=cores), make_profile()) == expected


def test_threads_are_a_knob_of_the_cpu_only() -> None:
    assert "cuda" in reason("threads", MACHINES["A100"], CUDA)
    assert reason("threads", MACHINES["one core"], make_profile()) == "there is one core"


def test_another_layout_needs_convolutions_on_any_device() -> None:
    assert values("memory_format", make_hardware(), make_profile())[1] == "channels_last"
    flat = make_profile(conv2d_layers=0)
    assert "convolution" in reason("memory_format", make_hardware(), flat)


def test_cudnn_needs_convolutions_on_cuda() -> None:
    assert values("cudnn", MACHINES["V100"], CUDA) == ("default", "benchmark")
    assert "cpu" in reason("cudnn", MACHINES["V100"], make_profile())
    flat = profile_with(CUDA, conv2d_layers=0)
    assert "convolution" in reason("cudnn", MACHINES["V100"], flat)


def test_compiling_for_the_cpu_needs_a_compiler() -> None:
    bare = make_hardware(has_cxx_compiler=False, gpus=(A100,))
    assert "g++" in reason("compile", bare, make_profile())
    assert "default" in values("compile", bare, CUDA)


def test_a_program_that_compiles_its_model_is_left_alone() -> None:
    profile = make_profile(is_compiled=True)
    assert "compiles its model itself" in reason("compile", make_hardware(), profile)


def test_what_torch_fixes_at_its_start_needs_a_fresh_process() -> None:
    restart = {name for name, knob in registry().items() if knob.scope is Scope.RESTART}
    assert restart == {
        "cuda_allocator",
        "cudnn",
        "ddp_options",
        "devices",
        "flush_denormal",
        "fsdp_options",
        "interop_threads",
        "sync_batchnorm",
    }


# --- values as people write them ------------------------------------------------------------------


def test_compile_off_in_yaml_is_a_boolean_and_means_off() -> None:
    assert registry()["compile"].parse(False) == "off"


@pytest.mark.parametrize("raw", [True, "on", "max-autotune", "Off", "default "])
def test_other_compile_modes_are_refused_with_those_that_exist(raw: object) -> None:
    with pytest.raises(ValueError, match="takes off or default or default-dynamic"):
        registry()["compile"].parse(raw)


@pytest.mark.parametrize("raw", [False, "fp8", "bfloat16", 16])
def test_other_precisions_are_refused_with_those_that_exist(raw: object) -> None:
    with pytest.raises(ValueError, match="takes fp32 or tf32 or medium or bf16 or fp16, not"):
        registry()["precision"].parse(raw)


@pytest.mark.parametrize("knob", ["batch_size", "threads", "prefetch_factor"])
def test_zero_is_no_batch_no_thread_and_no_buffer(knob: str) -> None:
    with pytest.raises(ValueError, match="takes a whole number from 1 on, not 0"):
        registry()[knob].parse(0)


def test_zero_workers_are_a_value() -> None:
    assert registry()["workers"].parse(0) == 0


@pytest.mark.parametrize("raw", ["true", "yes", 1, 0, None])
def test_a_switch_takes_true_or_false_only(raw: object) -> None:
    with pytest.raises(ValueError, match="takes true or false, not"):
        registry()["in_order"].parse(raw)


# --- kernels, optimizer, memory -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("device", "setting", "expected"),
    [
        ("cpu", "highest", "fp32"),
        ("cpu", "high", "fp32"),
        ("cpu", "medium", "medium"),
        ("cuda", "highest", "fp32"),
        ("cuda", "high", "tf32"),
        ("cuda", "medium", "tf32"),
    ],
)
def test_how_fp32_is_multiplied_is_a_precision(device: str, setting: str, expected: str) -> None:
    profile = make_profile(device=device, matmul_precision=setting)
    assert registry()["precision"].current(profile) == expected
    for value, machine in (("tf32", make_hardware()), ("medium", MACHINES["A100"])):
        refused = registry()["precision"].refusal(value, Here(machine, profile))
        assert (refused is None) is ((value == "tf32") is (device == "cuda"))


@pytest.mark.parametrize(
    ("machine", "device", "expected"),
    [
        ("two cores", "cpu", ("auto", "flash", "math")),
        ("V100", "cuda", ("auto", "efficient", "math")),
        ("A100", "cuda", ("auto", "flash", "efficient", "math")),
        ("H100", "cuda", ("auto", "flash", "efficient", "math", "cudnn")),
        ("two GPUs", "cuda", ("auto", "flash", "efficient", "math")),
    ],
)
def test_attention_kernels_are_those_of_the_weakest_device(
    machine: str, device: str, expected: tuple[str, ...]
) -> None:
    profile = make_profile(device=device, attention="auto")
    assert values("attention", MACHINES[machine], profile) == expected
    without = make_profile(device=device)
    assert "does not call" in reason("attention", MACHINES[machine], without)


def optimizer(name: str = "Adam", ways: tuple[str, ...] = ("for-loop", "fused")) -> OptimizerFacts:
    return OptimizerFacts(name, (name,), (0.1,), "for-loop", ways)


def test_optimizers_are_offered_what_all_of_them_have() -> None:
    both = make_profile(
        optimizers=(optimizer(), optimizer("SGD", ("for-loop", "foreach", "fused")))
    )
    assert values("optimizer", make_hardware(), both) == ("for-loop", "fused")
    lbfgs = make_profile(optimizers=(optimizer("LBFGS", ("for-loop",)),))
    assert "only one implementation works here for LBFGS" in reason(
        "optimizer", make_hardware(), lbfgs
    )
    mixed = make_profile(optimizers=(optimizer(), replace(optimizer(), implementation="fused")))
    assert "differ" in reason("optimizer", make_hardware(), mixed)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"loaders": ()}, "without a torch DataLoader"),
        ({"optimizers": (optimizer(), optimizer())}, "2 optimizers"),
        ({"optimizers": (optimizer("LBFGS"),)}, "LBFGS"),
        ({"loaders": (make_loader(iterable=True),)}, "IterableDataset"),
        ({"zero_grad_to_none": None}, "zero_grad"),
        ({"batches_per_step": 2.0}, "accumulates gradients itself"),
    ],
)
def test_accumulation_is_refused_by_name_where_it_would_not_be_exact(
    changes: dict[str, object], expected: str
) -> None:
    assert expected in reason("accumulation_steps", make_hardware(), make_profile(**changes))


def test_accumulation_is_offered_to_the_ordinary_loop() -> None:
    assert values("accumulation_steps", make_hardware(), make_profile()) == (1, 2, 4)


def test_modes_of_compile_are_offered_where_they_differ() -> None:
    assert values("compile", make_hardware(), make_profile()) == ("off", "default")
    assert "reduce-overhead" in values("compile", MACHINES["A100"], CUDA)
    refused = registry()["compile"].refusal(
        "reduce-overhead", Here(make_hardware(), make_profile())
    )
    assert refused is not None
    assert "CUDA graphs" in refused
    bare = make_hardware(has_cxx_compiler=False)
    assert "C++ compiler" in reason("compile", bare, make_profile())


def test_freed_memory_may_be_kept_on_a_cpu_with_glibc() -> None:
    name = "keep_freed_memory"
    assert "not glibc's" in reason(name, make_hardware(), make_profile(mmap_threshold=None))
    known = make_profile(mmap_threshold=8 << 20)
    assert values(name, make_hardware(), known) == (False, True)
    assert "cuda" in reason(name, make_hardware(), CUDA)


def test_segments_that_grow_are_an_option_beside_the_users_own(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "max_split_size_mb:64,expandable_segments:False")
    knob = registry()["cuda_allocator"]
    plan = LaunchPlan(("python",), "/")
    variable = "PYTORCH_CUDA_ALLOC_CONF"
    grown = knob.launch("expandable_segments", plan).env[variable]
    assert grown == "max_split_size_mb:64,expandable_segments:True"
    assert knob.launch("default", plan).env[variable].endswith(",expandable_segments:False")
    assert values("cuda_allocator", MACHINES["A100"], CUDA) == ("default", "expandable_segments")
    assert "cpu" in reason("cuda_allocator", make_hardware(), make_profile())


def test_sync_batchnorm_is_for_ranks_that_autotune_makes() -> None:
    gpus = MACHINES["two GPUs"]
    profile = make_profile(device="cuda", batch_norm_layers=2)
    assert values("sync_batchnorm", gpus, profile) == (False, True)
    itself = profile_with(profile, distributed_by="DistributedDataParallel")
    assert "distributes itself" in reason("sync_batchnorm", gpus, itself)
    assert values("ddp_options", gpus, itself), "the options of its own DDP are tuned"


@pytest.mark.parametrize(
    ("devices", "steps", "is_refused"),
    [("ddp-2", 2, True), ("ddp-2", 1, False), ("own-2", 2, False)],
)
def test_a_static_graph_does_not_go_with_accumulation_by_the_seams(
    devices: str, steps: int, is_refused: bool
) -> None:
    config = Config(
        {"devices": devices, "accumulation_steps": steps, "ddp_options": "static-graph"}
    )
    assert (registry()["ddp_options"].conflict(config) is not None) is is_refused


def test_devices_are_strategies_with_numbers_of_ranks() -> None:
    offered = values("devices", MACHINES["two GPUs"], CUDA)
    assert offered == ("single", "data_parallel", "ddp-2", "fsdp-2", "zero1-2")
    knob, here = registry()["devices"], Here(make_hardware(), make_profile())
    assert knob.refusal("ddp-4", here) == "4 ranks need one device each, and there are 2"
    assert knob.parse("ddp-16") == "ddp-16"
    for wrong in ("ddp", "single-2", "ddp-0", "nothing-2"):
        with pytest.raises(ValueError, match="takes single or"):
            knob.parse(wrong)
    plan = LaunchPlan(("python",), "/", ranks=4)
    assert knob.launch("ddp-2", plan).ranks == 2
    assert knob.launch("single", plan).ranks is None


def test_several_options_of_a_strategy_are_joined() -> None:
    given: dict[str, KnobValue] = {}
    seams: Any = SimpleNamespace(set_strategy_options=lambda **options: given.update(options))
    knob = registry()["fsdp_options"]
    knob.apply(knob.parse("keep-gathered+bf16"), seams)
    assert given == {"fsdp_reshard_after_forward": False, "fsdp_mixed_precision": "bf16"}
    with pytest.raises(ValueError, match="takes default or"):
        knob.parse("bf16+fp8")
