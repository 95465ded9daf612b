"""What each knob offers where: the values worth trying, and why there are none."""

from dataclasses import replace

import pytest

from autotune.errors import UsageError
from autotune.knobs import Scope, registry
from autotune.knobs.base import Here, StrategyOption
from autotune.machine.hardware import Hardware
from autotune.program.config import Config, KnobValue
from autotune.program.domain import Domain, NotOffered
from autotune.program.profile import OptimizerFacts, Profile
from autotune.program.program import LaunchPlan
from tests.gpu_fakes import unused
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

CUDA = make_profile(device="cuda")
CPU = make_profile()
HERE = make_hardware()
ADAM = OptimizerFacts("Adam", ("Adam",), (0.1,), "for-loop", ("for-loop", "fused"))
SGD = replace(ADAM, name="SGD", families=("SGD",), implementations=("for-loop", "foreach", "fused"))
LBFGS = replace(ADAM, name="LBFGS", families=("LBFGS",), implementations=("for-loop",))
BATCHES = (64, 128, 256, 512, 1024, 2048)


def values(knob: str, hardware: Hardware, profile: Profile) -> tuple[KnobValue, ...]:
    offer = registry()[knob].domain(Here(hardware, profile))
    assert isinstance(offer, Domain), offer
    return offer.values


def reason(knob: str, hardware: Hardware, profile: Profile) -> str:
    offer = registry()[knob].domain(Here(hardware, profile))
    assert isinstance(offer, NotOffered), offer
    return offer.reason


def of_length(dataset_len: int | None) -> Profile:
    return make_profile(loaders=(make_loader(dataset_len=dataset_len),))


def on_cores(cores: int) -> Hardware:
    return make_hardware(cpu_quota=cores)


OFFERED: tuple[tuple[str, Hardware, Profile, tuple[KnobValue, ...]], ...] = (
    ("precision", HERE, CPU, ("fp32", "medium", "bf16")),
    *(
        ("precision", make_hardware(gpus=gpus), CUDA, ("fp32", "tf32", "bf16", "fp16"))
        for gpus in ((A100,), (H100,), (A100, H100))
    ),
    # bf16 is not offered where a GPU would emulate it
    *(
        ("precision", make_hardware(gpus=gpus), CUDA, ("fp32", "fp16"))
        for gpus in ((V100,), (A100, V100))
    ),
    # a buffer holds at most an eighth of an epoch
    *(
        ("prefetch_factor", HERE, of_length(n), (2, 4, 8)[:count])
        for n, count in ((60_000, 3), (4096, 3), (4095, 2), (2000, 1), (None, 3))
    ),
    # an epoch keeps at least 20 steps; a dataset without a length sets no limit
    *(
        ("batch_size", HERE, of_length(n), BATCHES[:count])
        for n, count in ((60_000, 6), (10_240, 4), (10_239, 3), (2560, 2), (2559, 1), (None, 6))
    ),
    *(
        ("workers", on_cores(cores), CPU, (0, 1, 2, 4, 8, 12)[:count])
        for cores, count in ((1, 3), (2, 3), (4, 4), (8, 6))
    ),
    ("pinning", MACHINES["A100"], CUDA, ("off", "non-blocking")),
    # the cores, one less, and halvings
    ("threads", on_cores(2), CPU, (1, 2)),
    ("threads", on_cores(3), CPU, (1, 2, 3)),
    ("threads", on_cores(16), CPU, (1, 2, 3, 4, 7, 8, 15, 16)),
    ("memory_format", HERE, CPU, ("contiguous", "channels_last")),
    ("cudnn", MACHINES["V100"], CUDA, ("default", "benchmark")),
    ("compile", HERE, CPU, ("off", "default")),
    *(
        ("attention", MACHINES[machine], make_profile(device=device, attention="auto"), kernels)
        for machine, device, kernels in (
            ("two cores", "cpu", ("auto", "flash", "math")),
            ("V100", "cuda", ("auto", "efficient", "math")),
            ("A100", "cuda", ("auto", "flash", "efficient", "math")),
            ("H100", "cuda", ("auto", "flash", "efficient", "math", "cudnn")),
            ("two GPUs", "cuda", ("auto", "flash", "efficient", "math")),
        )
    ),
    ("cudnn", MACHINES["A100"], profile_with(CUDA, conv2d_layers=0), ("default", "benchmark")),
    ("optimizer", HERE, make_profile(optimizers=(ADAM, SGD)), ("for-loop", "fused")),
    ("accumulation_steps", HERE, CPU, (1, 2, 4)),
    ("keep_freed_memory", HERE, make_profile(mmap_threshold=8 << 20), (False, True)),
    ("cuda_allocator", MACHINES["A100"], CUDA, ("default", "expandable_segments")),
    (
        "sync_batchnorm",
        MACHINES["two GPUs"],
        make_profile(device="cuda", batch_norm_layers=2),
        (False, True),
    ),
)
FLAT = profile_with(CUDA, conv2d_layers=0, convolutions=0)
NOWHERE = profile_with(CUDA, loaders=())
BARE = make_hardware(has_cxx_compiler=False)
LOADER_KNOBS = (
    *("workers", "prefetch_factor", "in_order", "worker_start_method"),
    *("worker_threads", "pinning", "batch_size", "accumulation_steps"),
)
REFUSED: tuple[tuple[str, Hardware, Profile, str], ...] = (
    *((knob, MACHINES["A100"], NOWHERE, "without a torch DataLoader") for knob in LOADER_KNOBS),
    ("precision", MACHINES["H100"], profile_with(CUDA, weights_dtype="bfloat16"), "bfloat16"),
    *(
        ("batch_size", HERE, make_profile(loaders=loaders), said)
        for loaders, said in (
            ((make_loader(), make_loader(ordinal=1)), "trains from 2 loaders at once"),
            ((make_loader(has_batch_sampler=True, batch_size=None),), "own batch sampler"),
            ((make_loader(batch_size=None),), "batch_size=None"),
        )
    ),
    ("pinning", MACHINES["A100"], CPU, "on the CPU"),
    ("pinning", MACHINES["A100"], profile_with(CUDA, loads_on="cuda"), "on the cuda device"),
    ("workers", MACHINES["A100"], profile_with(CUDA, loads_on="cuda"), "on the cuda device"),
    ("threads", MACHINES["A100"], CUDA, "cuda"),
    ("threads", MACHINES["one core"], CPU, "there is one core"),
    ("memory_format", HERE, make_profile(conv2d_layers=0), "convolution"),
    ("cudnn", MACHINES["V100"], CPU, "cpu"),
    ("cudnn", MACHINES["V100"], FLAT, "convolution"),
    ("compile", BARE, CPU, "g++"),
    ("compile", make_hardware(gpus=(replace(V100, compute_capability=(6, 1)),)), CUDA, "7.0"),
    ("compile", HERE, make_profile(is_compiled=True), "compiles its model itself"),
    ("attention", MACHINES["A100"], CUDA, "does not call"),
    ("attention", HERE, make_profile(attention="auto", is_compiled=True), "traced first"),
    ("optimizer", HERE, make_profile(optimizers=(LBFGS,)), "only one implementation works here"),
    (
        "optimizer",
        HERE,
        make_profile(optimizers=(ADAM, replace(ADAM, implementation="fused"))),
        "differ",
    ),
    *(
        ("accumulation_steps", HERE, make_profile(**changes), said)
        for changes, said in (
            ({"optimizers": (ADAM, ADAM)}, "2 optimizers"),
            ({"optimizers": (LBFGS,)}, "LBFGS"),
            ({"zero_grad_to_none": None}, "zero_grad"),
            ({"batches_per_step": 2.0}, "accumulates gradients itself"),
        )
    ),
    *(
        (knob, HERE, make_profile(started_by="multiprocessing.Process"), "by multiprocessing.Proc")
        for knob in ("devices", "ddp_options")
    ),
    ("keep_freed_memory", HERE, make_profile(mmap_threshold=None), "not glibc's"),
    ("keep_freed_memory", HERE, CUDA, "cuda"),
    ("cuda_allocator", HERE, CPU, "cpu"),
    (
        "sync_batchnorm",
        MACHINES["two GPUs"],
        make_profile(device="cuda", batch_norm_layers=2, distributed_by="Accelerate"),
        "distributes itself",
    ),
)


@pytest.mark.parametrize(("knob", "hardware", "profile", "expected"), OFFERED)
def test_a_knob_offers_what_is_worth_trying_here(
    knob: str, hardware: Hardware, profile: Profile, expected: tuple[KnobValue, ...]
) -> None:
    assert values(knob, hardware, profile) == expected


@pytest.mark.parametrize(("knob", "hardware", "profile", "said"), REFUSED)
def test_a_knob_that_cannot_act_here_says_why(
    knob: str, hardware: Hardware, profile: Profile, said: str
) -> None:
    assert said in reason(knob, hardware, profile)


def test_a_large_machine_is_offered_no_more_than_32_workers_and_ranks_share_the_cores() -> None:
    assert max(values("workers", on_cores(256), CPU)) == 32
    for ranks, most in ((1, 32), (8, 12), (64, 2)):
        assert max(values("workers", on_cores(64), make_profile(world_size=ranks))) == most


def test_threads_beside_a_gpu_are_for_who_names_them_where_the_program_loads_itself() -> None:
    named = make_space([]).tune(["threads"])
    offered = named.resolve(MACHINES["A100"], CUDA).domains["threads"].values
    assert {1, MACHINES["A100"].cpu_quota} < {*offered}
    with_workers = profile_with(CUDA, loaders=(make_loader(num_workers=2),))
    for hardware, profile in (
        (MACHINES["A100"], with_workers),
        (make_hardware(gpus=(A100,), cpu_quota=1), CUDA),
    ):
        with pytest.raises(UsageError, match=r"threads"):
            named.resolve(hardware, profile)


def test_compilers_modes_are_offered_where_they_act() -> None:
    assert "reduce-overhead" in values("compile", MACHINES["A100"], CUDA)
    refused = registry()["compile"].refusal("reduce-overhead", Here(HERE, CPU))
    assert refused is not None
    assert "CUDA graphs" in refused


def test_a_kernel_of_attention_is_not_tried_in_code_that_was_compiled_with_another() -> None:
    """The program's own kernel, and one that the user fixes, are those that it is compiled with."""
    space = make_space({"compile": None, "attention": None})
    for own, fixed, kernel, is_refused in (
        ("auto", {}, "math", True),
        ("auto", {}, "auto", False),
        ("math", {}, "math", False),
        ("auto", {"attention": "flash"}, "flash", False),
    ):
        resolved = space.fix(fixed).resolve(HERE, make_profile(attention=own))
        for compiled in ("off", "default"):
            config = resolved.start.replace(compile=compiled, attention=kernel)
            refused = bool(resolved.conflicts(config))
            assert refused is (is_refused and compiled == "default"), (own, kernel, compiled)


def test_replicas_of_data_parallel_are_not_asked_for_bf16() -> None:
    """Torch's threads for them would compute in fp16, its default, without scaled losses."""
    wrapped = profile_with(CUDA, distributed_by="nn.DataParallel")
    for machine, is_offered in (("A100", True), ("two GPUs", False)):
        here = Here(MACHINES[machine], wrapped)
        assert ("bf16" in values("precision", here.hardware, wrapped)) is is_offered
        assert (registry()["precision"].refusal("bf16", here) is None) is is_offered
    for precision, is_refused in (("bf16", True), ("fp16", False), ("tf32", False)):
        config = Config({"devices": "data_parallel", "precision": precision})
        assert (registry()["devices"].conflict(config) is not None) is is_refused


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


def test_a_program_that_computes_in_its_own_autocast_starts_from_its_dtype() -> None:
    profile = make_profile(autocast="bfloat16")
    space = make_space(["precision"]).resolve(make_hardware(cpu_flags=()), profile)
    assert space.baseline["precision"] == "bf16"
    assert set(space.domains["precision"].values) == {"fp32", "bf16"}, "fp32 may gain"


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"steps_by_hand": "train.py:7 adds to weights"}, "train.py:7"),
        ({"against_scaling": "the program computes gradients without backward()"}, "without back"),
    ],
)
def test_fp16_needs_losses_that_can_be_scaled(changes: dict[str, object], expected: str) -> None:
    """Whoever names it; a program that scales its losses itself is left to itself."""
    profile = make_profile(device="cuda", **changes)
    assert values("precision", MACHINES["H100"], profile) == ("fp32", "tf32", "bf16")
    assert expected in reason("precision", MACHINES["V100"], profile)
    refused = registry()["precision"].refusal("fp16", Here(MACHINES["H100"], profile))
    assert expected in str(refused)
    itself = profile_with(profile, has_scaler=True)
    assert "fp16" in values("precision", MACHINES["H100"], itself)


@pytest.mark.parametrize(
    ("device", "setting", "expected"),
    [
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
    for value, machine in (("tf32", HERE), ("medium", MACHINES["A100"])):
        refused = registry()["precision"].refusal(value, Here(machine, profile))
        assert (refused is None) is ((value == "tf32") is (device == "cuda"))


def test_what_loaders_do_today_is_read_from_the_profile() -> None:
    prefetch, pinning = registry()["prefetch_factor"], registry()["pinning"]
    assert not prefetch.is_active(Config({"workers": 0, "prefetch_factor": 4}))
    assert prefetch.is_active(Config({"workers": 2, "prefetch_factor": 4}))
    assert prefetch.is_active(Config({"prefetch_factor": 4}))
    assert prefetch.current(CPU) == 2, "what workers would get"
    deep = make_profile(loaders=(make_loader(num_workers=2, prefetch_factor=6),))
    assert prefetch.current(deep) == 6
    pinned = {"loaders": (make_loader(pin_memory=True),)}
    assert pinning.current(CUDA) == "off"
    assert pinning.current(profile_with(CUDA, **pinned)) == "blocking"
    apart = profile_with(CUDA, **pinned, copies_without_blocking=True)
    assert pinning.current(apart) == "non-blocking"


def test_what_torch_fixes_at_its_start_needs_a_fresh_process() -> None:
    restart = {name for name, knob in registry().items() if knob.scope is Scope.RESTART}
    assert restart == {
        "cuda_allocator",
        "cudnn",
        "ddp_options",
        "devices",
        "flush_denormal",
        "fsdp_options",
        "sync_batchnorm",
    }


def test_batches_and_threads_are_counted_from_one() -> None:
    assert registry()["workers"].parse(0) == 0
    for knob in ("batch_size", "threads"):
        with pytest.raises(ValueError, match="takes a whole number from 1 on, not 0"):
            registry()[knob].parse(0)


def test_growing_segments_are_an_option_beside_the_users(monkeypatch: pytest.MonkeyPatch) -> None:
    knob = registry()["cuda_allocator"]
    for variable in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF"):  # the last stands for both
        monkeypatch.setenv(variable, "max_split_size_mb:64,expandable_segments:False")
        plan = LaunchPlan(("python",), "/")
        grown = knob.launch("expandable_segments", plan).env
        assert grown == {variable: "max_split_size_mb:64,expandable_segments:True"}
        own = knob.launch("default", plan).env[variable]
        assert own.endswith(",expandable_segments:False")


def test_options_of_ddp_are_for_all_who_use_it_and_a_static_graph_is_not_for_accumulation() -> None:
    itself = profile_with(CUDA, distributed_by="DistributedDataParallel")
    assert values("ddp_options", MACHINES["two GPUs"], itself)
    for devices, steps, is_refused in (
        ("ddp-2", 2, True),
        ("ddp-2", 1, False),
        ("own-2", 2, False),
    ):
        config: dict[str, KnobValue] = {
            "devices": devices,
            "accumulation_steps": steps,
            "ddp_options": "static-graph",
        }
        conflict = registry()["ddp_options"].conflict(Config(config))
        assert (conflict is not None) is is_refused


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
    knob = registry()["fsdp_options"]
    assert isinstance(knob, StrategyOption)
    assert knob.options(knob.parse("keep-gathered+bf16")) == {
        "fsdp_reshard_after_forward": False,
        "fsdp_mixed_precision": "bf16",
    }
    with pytest.raises(ValueError, match="takes default or"):
        knob.parse("bf16+fp8")
